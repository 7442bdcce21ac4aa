#!/usr/bin/env bash
# Builds lockreg of a tagged release into dist/, for each platform, with checksums, an SBOM, and the section of the changelog:
#   scripts/build-release.sh v0.1.0
set -euo pipefail
cd "$(dirname "$0")/.."
export GOWORK=off

version=${1:?usage: scripts/build-release.sh v0.1.0}
platforms=(linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64 windows/arm64)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git clone -q --shared . "$work/tree" # Go takes the version from the tags of a clone, and of no worktree
git -C "$work/tree" checkout -q "cmd/lockreg/$version"
rm -rf dist
mkdir dist
for platform in "${platforms[@]}"; do
	name=lockreg-$version-${platform/\//-}
	[[ $platform != windows/* ]] || name+=.exe
	GOOS=${platform%/*} GOARCH=${platform#*/} CGO_ENABLED=0 \
		go -C "$work/tree/cmd/lockreg" build -buildvcs=true -trimpath -ldflags "-s -w" -o "$PWD/dist/$name" .
done
"dist/lockreg-$version-$(go env GOOS)-$(go env GOARCH)" version | grep -qF " $version " || {
	echo "lockreg does not know that it is $version" >&2
	exit 1
}
"$(go -C internal/tools/release tool -n cyclonedx-gomod)" mod -json -licenses -output "dist/lockreg-$version.cdx.json" \
	"$work/tree/cmd/lockreg" 2>/dev/null
(cd dist && sha256sum -- lockreg-* >SHA256SUMS)
awk -v v="## [${version#v}]" 'index($0, "## ") == 1 { on = index($0, v) == 1; next } on' CHANGELOG.md >dist/notes.md
ls -l dist
