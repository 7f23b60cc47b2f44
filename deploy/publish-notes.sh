#!/usr/bin/env bash
# Create the release of a tag with its notes; a version other than x.y.z is a pre-release. Run by the release workflow.
#
#   deploy/publish-notes.sh TAG NOTES
set -euo pipefail
tag=$1 notes=$2
candidate=()
[[ "$tag" =~ ^v[0-9]+\.[0-9]+\.[0-9]+$ ]] || candidate=(--prerelease)
gh release create "$tag" --verify-tag --title "$tag" --notes-file "$notes" ${candidate[@]+"${candidate[@]}"}
