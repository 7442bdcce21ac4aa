#!/bin/sh
# Makes sure that the tests of alerts and of the dashboard find Prometheus and promtool on PATH, installed if need be.
set -eu

if ! command -v promtool >/dev/null || ! command -v prometheus >/dev/null; then
	if [ "$(uname)" = Darwin ]; then
		echo "prometheus is missing; install it: brew install prometheus" >&2
		exit 1
	fi
	"$(dirname "$0")/apt-install.sh" prometheus
fi
promtool --version | head -1
