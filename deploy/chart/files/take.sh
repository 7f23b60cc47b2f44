#!/usr/bin/env bash
# Take a snapshot of the index in VOLUME to FOLDER/latest. The one before stays until the new one is whole.
set -euo pipefail
folder=$1 volume=$2
mkdir -p "$folder"
exec 9> "$folder/lock"
flock --nonblock 9 || { echo "Another snapshot is being taken to $folder; wait for it to end." >&2; exit 1; }
rm -rf "$folder/new" "$folder/old"
stream-dedup index snapshot "$folder/new" --volume "$volume"
if [ -d "$folder/latest" ]; then mv "$folder/latest" "$folder/old"; fi
mv "$folder/new" "$folder/latest"
rm -rf "$folder/old"
