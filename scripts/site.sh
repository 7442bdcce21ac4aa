#!/bin/sh
# Builds the site of docs/ in .site/dist, which git ignores. Needs npm, which it installs on Debian.
set -eu
cd "$(dirname "$0")/.."

if ! command -v npm >/dev/null; then
	if [ "$(uname)" = Darwin ]; then
		echo "npm is missing; install it: brew install node" >&2
		exit 1
	fi
	scripts/apt-install.sh npm
fi
mkdir -p .site
if ! cmp -s scripts/site/package-lock.json .site/package-lock.json || [ ! -d .site/node_modules/vitepress ]; then
	cp scripts/site/package.json scripts/site/package-lock.json .site
	(cd .site && npm ci --silent --no-audit --no-fund)
fi
rm -rf .site/pages .site/dist .site/.vitepress
cp -r scripts/site/.vitepress .site
(cd docs && find . -name '*.md' -o -name '*.svg' -o -name '*.png' | tar -cf - -T -) | (mkdir .site/pages && tar -xf - -C .site/pages)
cd .site
npm run --silent build
