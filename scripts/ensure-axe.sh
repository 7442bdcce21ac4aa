#!/bin/sh
# Fetches axe-core, which finds accessibility faults in a page, into .axe, which git ignores. Needs npm.
set -eu
cd "$(dirname "$0")/.."

version=4.14.1
sum=29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c

if [ "$(cat .axe/version 2>/dev/null)" = "$version" ]; then
	exit 0
fi
if ! command -v npm >/dev/null; then
	if [ "$(uname)" = Darwin ]; then
		echo "npm is missing; install it: brew install node" >&2
		exit 1
	fi
	scripts/apt-install.sh npm
fi
# In a folder of its own: two stages may fetch it at the same time.
mkdir -p .axe
work=$(mktemp -d .axe/fetched.XXXXXX)
trap 'rm -rf "$work"' EXIT
(cd "$work" && npm pack --silent "axe-core@$version" >/dev/null)
tar -xzf "$work/axe-core-$version.tgz" -C "$work" --strip-components=1 package/axe.min.js package/LICENSE
if command -v sha256sum >/dev/null && ! echo "$sum  $work/axe.min.js" | sha256sum --check --status; then
	echo "axe-core $version is not what it was" >&2
	exit 1
fi
mv "$work/axe.min.js" "$work/LICENSE" .axe
echo "$version" >.axe/version
