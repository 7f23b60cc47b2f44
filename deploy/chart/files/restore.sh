#!/usr/bin/env bash
# Begin an empty VOLUME with FOLDER/latest. Without a snapshot, or with one that is damaged, the index reads the log instead.
set -euo pipefail
folder=$1 volume=$2
if [ -e "$volume/CURRENT" ]; then echo "The volume holds an index; nothing is restored."; exit 0; fi
# A snapshot that was being put in its place when the pod was killed.
for found in "$folder/latest" "$folder/new" "$folder/old"; do
  if [ -e "$found/snapshot.json" ]; then
    stream-dedup index restore "$found" "$volume" --offline || echo "The snapshot $found is not used; the index reads the log."
    exit 0
  fi
done
echo "There is no snapshot in $folder; the index reads the log."
