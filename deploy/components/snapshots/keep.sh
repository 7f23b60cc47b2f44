#!/usr/bin/env bash
# Take a snapshot of the index in VOLUME to FOLDER/latest whenever that is older than EVERY seconds; ends at SIGTERM. One that
# failed, because the index still opens, say, is tried again after AGAIN seconds.
set -euo pipefail
here=$(dirname "$0") folder=$1 volume=$2 every=$3 again=${4:-300}
trap 'kill $(jobs -p) 2> /dev/null || true; exit 0' TERM
pause() { sleep "$1" & wait $!; }
while true; do
  taken=$(stat --format=%Y "$folder/latest/snapshot.json" 2> /dev/null || echo 0)
  left=$((taken + every - $(date +%s)))
  if [ "$left" -gt 0 ]; then pause "$left"; continue; fi
  bash "$here/take.sh" "$folder" "$volume" & wait $! || pause "$again"
done
