#!/usr/bin/env bash
# Makes the tags of a release of the commit that is checked out, and builds it into dist/. Pushes nothing:
#   scripts/release.sh v0.1.0
# On main, the modules that need the library have replace directives. Their tags are on a commit of their own without these.
set -euo pipefail
cd "$(dirname "$0")/.."
export GOWORK=off

version=${1:?usage: scripts/release.sh v0.1.0}
modules=(contrib/* cmd/lockreg)
tags=("$version" "${modules[@]/%//$version}")
library=$(go list -m)

fail() {
	echo "release: $*" >&2
	exit 1
}
[[ $version =~ ^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9a-z.]+)?$ ]] || fail "$version is no version, such as v0.1.0"
[ -z "$(git status --porcelain)" ] || fail "there are uncommitted changes"
grep -q "^## \[${version#v}\]" CHANGELOG.md || fail "CHANGELOG.md has no section [${version#v}]"
[ -z "$(git tag --list "${tags[@]}")" ] || fail "there are tags of $version: $(git tag --list "${tags[@]}" | xargs)"
if [[ $version != *.0 && $version != *-* ]]; then
	scripts/api.sh # a patch breaks nobody's program
fi

work=$(mktemp -d)
done=
cleanup() {
	git worktree remove --force "$work/tree" 2>/dev/null || true
	rm -rf "$work"
	[ -n "$done" ] || git tag -d "${tags[@]}" >/dev/null 2>&1 || true
}
trap cleanup EXIT

# The modules are tidied against the library as a proxy will have it.
git tag -a "$version" -m "$version"
git worktree add -q --detach "$work/tree" "$version"
go -C internal/tools/release run . "$PWD" "$version" "$work/proxy"
GOPROXY="file://$work/proxy,$(go env GOPROXY)"
export GOPROXY GONOSUMDB="$library"
for module in "${modules[@]}"; do
	go -C "$work/tree/$module" mod edit -dropreplace="$library" -require="$library@$version"
	go -C "$work/tree/$module" mod tidy -e
done
git -C "$work/tree" commit -qam "Modules of $version"
for module in "${modules[@]}"; do
	git tag -a "$module/$version" -m "$module $version" "$(git -C "$work/tree" rev-parse HEAD)"
done
scripts/build-release.sh "$version"
done=yes
echo "To publish: git push origin ${tags[*]}"
