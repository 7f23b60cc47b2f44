#!/usr/bin/env bash
# Build the image for a release: the same Dockerfile, with the base pinned by its current digest.
#
#   deploy/build-release.sh TAG      such as registry.example/stream-dedup:1.0.0rc1
#
# Asks the registry for the digest of BASE (default: the Dockerfile's), builds on exactly that, and prints it. The image's
# label org.opencontainers.image.base.name names its base; set BASE to that to build on the same base again.
# Needs Docker with buildx. It pushes nothing.
set -euo pipefail
cd "$(dirname "$0")/.."

TAG=${1:?"name the image to be made, such as registry.example/stream-dedup:1.0.0rc1"}
BASE=${BASE:-$(sed -n 's/^ARG BASE=//p' deploy/Dockerfile)}

if [[ "$BASE" != *@* ]]; then
  digest=$(docker buildx imagetools inspect "$BASE" --format '{{.Manifest.Digest}}') || {
    echo "the registry did not tell the digest of $BASE; is it reachable, and is buildx installed?" >&2
    exit 1
  }
  BASE=$BASE@$digest
fi
if ! [[ "$BASE" =~ ^[^@[:space:]]+@sha256:[0-9a-f]{64}$ ]]; then
  echo "$BASE names no image by its digest (NAME@sha256:64 hexadecimal digits), so nothing was built" >&2
  exit 1
fi
docker build --pull --build-arg "BASE=$BASE" --file deploy/Dockerfile --tag "$TAG" .
echo "$TAG is built on $BASE"
