#!/bin/sh
# Makes sure that Go's race detector can be built in. It needs cgo, and cgo needs a C compiler.
set -eu

# CGO_ENABLED is 0 by default where there is no compiler, so it means nothing until there is one. If it was set by hand, respect
# it.
if [ "${CGO_ENABLED:-}" = 0 ]; then
	echo "the tests run with the race detector, which needs cgo: unset CGO_ENABLED" >&2
	exit 1
fi
compiler=$(go env CC)
# CC may hold flags after the program.
if ! command -v "${compiler%% *}" >/dev/null; then
	echo "the race detector needs a C compiler, and ${compiler%% *} is missing"
	if [ "$(uname)" = Darwin ]; then
		echo "install it: xcode-select --install" >&2
		exit 1
	fi
	"$(dirname "$0")/apt-install.sh" gcc libc6-dev
fi
if [ "$(go env CGO_ENABLED)" != 1 ]; then
	echo "the tests run with the race detector, which needs cgo, but 'go env CGO_ENABLED' is 0" >&2
	exit 1
fi
