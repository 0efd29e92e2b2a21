#!/bin/sh
# Helm's post-renderer: the chart's manifests come in, and go out as kustomization.yaml beside this changes them.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cp "$(dirname "$0")/kustomization.yaml" "$folder"
cat > "$folder/rendered.yaml"
kubectl kustomize "$folder"
