#!/usr/bin/env bash
# Begin an empty VOLUME with FOLDER/latest. Without a snapshot, or with one that is damaged or of another version's layout, the
# index reads the log instead; so no snapshot is tried twice.
set -euo pipefail
folder=$1 volume=$2
for held in "$volume/CURRENT" "$volume"/layout-*/CURRENT; do
  if [ -e "$held" ]; then echo "The volume holds an index; nothing is restored."; exit 0; fi
done
# A snapshot that was being put in its place when the pod was killed.
for found in "$folder/latest" "$folder/new" "$folder/old"; do
  if [ -e "$found/snapshot.json" ]; then
    stream-dedup index restore "$found" "$volume" --offline || echo "The snapshot $found is not used; the index reads the log."
    exit 0
  fi
done
echo "There is no snapshot in $folder; the index reads the log."
