#!/usr/bin/env bash
# Build and test the image on a machine that has neither a container daemon nor an image registry.
#
#   deploy/build-without-daemon.sh [TAG]      (default: stream-dedup:local)
#
# The base is a Debian root file system made by debootstrap instead of the Dockerfile's; the Dockerfile is
# the same. Needs root, Debian or Ubuntu, and the packages buildah and debootstrap. All files are in WORK (default:
# build/image), which is kept, so that a second run is fast. Prints both sizes of the image; fails above 220 MB.
# With BROKER=host:port, a Kafka that has the topics (`stream-dedup broker`), it also measures the time of both roles to their first /readyz.
set -euo pipefail
cd "$(dirname "$0")/.."

TAG=${1:-stream-dedup:local}
WORK=$(realpath -m "${WORK:-build/image}")
SUITE=${SUITE:-trixie}
BASE=localhost/debian-python:$SUITE
COMPRESSED_BYTES_MAX=220000000

for tool in buildah debootstrap; do
  command -v "$tool" > /dev/null || { echo "$tool is not installed; try: apt-get install buildah debootstrap" >&2; exit 1; }
done
[ "$(id -u)" = 0 ] || { echo "debootstrap and chroot isolation need root; run this as root" >&2; exit 1; }

mkdir -p "$WORK"
export BUILDAH_ISOLATION=chroot
store=(--root "$WORK/storage" --runroot "$WORK/run" --storage-driver vfs)
buildah() { command buildah "${store[@]}" "$@"; }

if ! buildah inspect --type image "$BASE" > /dev/null 2>&1; then
  rm -rf "$WORK/root"
  debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates "$SUITE" "$WORK/root" > "$WORK/debootstrap.log"
  rm -rf "$WORK"/root/var/cache/apt/* "$WORK"/root/var/lib/apt/lists/* "$WORK"/root/var/log/* \
    "$WORK"/root/usr/share/{doc,man,locale,info}/*
  container=$(buildah from scratch)
  buildah add --quiet "$container" "$WORK/root" / > /dev/null
  buildah commit --quiet --rm "$container" "$BASE" > /dev/null
  rm -rf "$WORK/root"
fi

# pip's settings and certificate authorities are those of the machine, and are not kept in the image.
machine=()
for file in /etc/pip.conf /etc/ssl/certs/ca-certificates.crt; do
  [ -e "$file" ] && machine+=(--volume "$file:$file:ro")
done
buildah build --quiet --layers --pull-never --build-arg "BASE=$BASE" "${machine[@]}" --file deploy/Dockerfile --tag "$TAG" .

rm -rf "$WORK/oci"
buildah push --quiet "$TAG" "oci:$WORK/oci:latest"
compressed=$(find "$WORK/oci/blobs" -type f -printf '%s\n' | awk '{ sum += $1 } END { print sum }')
container=$(buildah from --pull-never "$TAG")
trap 'buildah rm "$container" > /dev/null' EXIT
unpacked=$(du --bytes --summarize "$(buildah mount "$container")" | cut -f1)
buildah umount "$container" > /dev/null
awk -v c="$compressed" -v u="$unpacked" 'BEGIN { printf "%.0f MB compressed, %.0f MB unpacked\n", c / 1e6, u / 1e6 }'

for arguments in "--help" "run --help" "version"; do
  # shellcheck disable=SC2086 - words
  buildah run --user 10001:10001 "$container" -- stream-dedup $arguments > /dev/null
done
echo "stream-dedup --help, run --help and version run in it as user 10001"

for role in ${BROKER:+index worker}; do
  port=$([ "$role" = index ] && echo 18081 || echo 18080)
  begun=$(date +%s%N)
  # A session of its own, so that the signal at the end reaches the role itself.
  setsid buildah "${store[@]}" run --user 10001:10001 --env "STREAM_DEDUP_KAFKA_BOOTSTRAP_SERVERS=$BROKER" --env "STREAM_DEDUP_HTTP_PORT=$port" \
    --env STREAM_DEDUP_HTTP_HOST=127.0.0.1 --env STREAM_DEDUP_STATE_DIR=/tmp/state --env STREAM_DEDUP_WORKER_ID=image-0 \
    "$container" -- stream-dedup run "$role" > "$WORK/$role.log" 2>&1 &
  roles="${roles:-} $!"
  until curl --silent --fail --output /dev/null "http://127.0.0.1:$port/readyz"; do
    kill -0 $! 2> /dev/null || { echo "the $role ended; its log:" >&2; tail "$WORK/$role.log" >&2; exit 1; }
    sleep 0.1
  done
  awk -v ns=$(($(date +%s%N) - begun)) -v role="$role" 'BEGIN { printf "%s ready after %.1f s\n", role, ns / 1e9 }'
done
for role in ${roles:-}; do kill -- "-$role"; wait "$role" || true; done

if [ "$compressed" -gt "$COMPRESSED_BYTES_MAX" ]; then
  echo "the image is larger than $((COMPRESSED_BYTES_MAX / 1000000)) MB compressed; see which layer grew: ls -lS $WORK/oci/blobs/sha256" >&2
  exit 1
fi
