#!/usr/bin/env bash
# Give one name to the images of several architectures, sign it, and print its digest. Run by the release workflow.
#
#   deploy/publish-image.sh IMAGE VERSION FOLDER      FOLDER contains a file for each image, named by its digest without sha256:
set -euo pipefail
image=$1 version=$2 folder=$3
sources=()
for file in "$folder"/*; do
  name=$(basename "$file")
  [[ "$name" =~ ^[0-9a-f]{64}$ ]] || { echo "$file is not named by a digest (64 hexadecimal digits)" >&2; exit 1; }
  sources+=("$image@sha256:$name")
done
tags=(--tag "$image:$version")
# A release candidate does not become `latest`.
[[ "$version" =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] && tags+=(--tag "$image:latest")
docker buildx imagetools create "${tags[@]}" "${sources[@]}"
digest=$(docker buildx imagetools inspect "$image:$version" --format '{{.Manifest.Digest}}')
cosign sign --yes "$image@$digest"
echo "$image:$version is $digest"
