#!/usr/bin/env bash
# Compares the exported names of the library with those of its newest release, or of the given commit. Fails if a program that
# was built against that may no longer build:
#   scripts/api.sh [COMMIT]
set -euo pipefail
cd "$(dirname "$0")/.."

base=${1:-$(git tag --list 'v[0-9]*' --merged HEAD --sort=-v:refname | head -1)}
if [ -z "$base" ]; then
	echo "There is no release to compare with. A commit can be given."
	exit 0
fi
export GOWORK=off
apidiff=$(go -C internal/tools/release tool -n apidiff)
work=$(mktemp -d)
trap 'git worktree remove --force "$work/tree" 2>/dev/null || true; rm -rf "$work"' EXIT
git worktree add -q --detach "$work/tree" "$base"
broken=
for package in . ./inspect ./leader ./lockhttp ./locktest ./observe contrib/gocronlock contrib/lockgoredis contrib/lockotel contrib/lockprom contrib/lockvet/rules cmd/lockreg/page cmd/lockreg/exporter cmd/lockreg/doctor; do
	module=. name=$package
	case $package in # some are in modules of their own
	contrib/gocronlock | contrib/lockgoredis | contrib/lockotel | contrib/lockprom) module=$package name=. ;;
	contrib/lockvet/rules) module=contrib/lockvet name=./rules ;;
	cmd/lockreg/*) module=cmd/lockreg name=./${package##*/} ;;
	esac
	[ -d "$work/tree/$package" ] || continue # it is newer
	(cd "$work/tree/$module" && "$apidiff" -w "$work/before" "$name")
	(cd "$module" && "$apidiff" -w "$work/now" "$name")
	changes=$("$apidiff" -incompatible "$work/before" "$work/now")
	if [ -n "$changes" ]; then
		printf '%s since %s:\n%s\n' "$package" "$base" "$changes"
		broken=yes
	fi
done
[ -z "$broken" ] || { echo "These changes break programs." >&2; exit 1; }
echo "No exported name of $base has changed so that a program would not build."
