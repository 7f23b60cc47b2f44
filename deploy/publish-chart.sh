#!/usr/bin/env bash
# Package the chart, push it to a registry as an OCI artifact, and sign it. Run by the release workflow.
#
#   deploy/publish-chart.sh REGISTRY [OPTION OF helm push ...]      such as ghcr.io/owner/charts
set -euo pipefail
cd "$(dirname "$0")/.."
registry=$1
shift
rm -rf build/chart
helm package deploy/chart --destination build/chart
said=$(helm push build/chart/*.tgz "oci://$registry" "$@" 2>&1) || { echo "$said" >&2; exit 1; }
echo "$said"
digest=$(sed -n 's/^Digest: //p' <<< "$said")
cosign sign --yes "$registry/stream-dedup@$digest"
