#!/bin/sh
# Makes sure that there is a headless Chromium to test the page in: the one that LOCKREGISTRY_CHROMIUM names, or one on PATH,
# installed if need be. Prints its version.
set -eu

find_chromium() {
	for name in ${LOCKREGISTRY_CHROMIUM:-chromium-headless-shell chromium chromium-browser google-chrome}; do
		if command -v "$name"; then
			return
		fi
	done
	return 1
}

if ! find_chromium >/dev/null; then
	if [ -n "${LOCKREGISTRY_CHROMIUM:-}" ]; then
		echo "LOCKREGISTRY_CHROMIUM names $LOCKREGISTRY_CHROMIUM, which cannot be run" >&2
		exit 1
	fi
	if [ "$(uname)" = Darwin ]; then
		echo "Chromium is missing; install it: brew install --cask chromium" >&2
		exit 1
	fi
	"$(dirname "$0")/apt-install.sh" chromium-headless-shell fonts-dejavu-core
fi
"$(find_chromium)" --version
