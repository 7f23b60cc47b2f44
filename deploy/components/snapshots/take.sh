#!/usr/bin/env bash
# Take a snapshot of the index in VOLUME to FOLDER/latest. The one before stays until the new one is whole.
set -euo pipefail
folder=$1 volume=$2
rm -rf "$folder/new" "$folder/old"
stream-dedup index snapshot "$folder/new" --volume "$volume"
if [ -d "$folder/latest" ]; then mv "$folder/latest" "$folder/old"; fi
mv "$folder/new" "$folder/latest"
rm -rf "$folder/old"
