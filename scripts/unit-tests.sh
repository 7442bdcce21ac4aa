#!/usr/bin/env bash
# Builds everything, and runs the tests that need no Redis server, on systems that have none.
set -euo pipefail
cd "$(dirname "$0")/.."
export GOWORK=off LOCKREGISTRY_REDIS_SERVER=none

for module in . cmd/lockreg contrib/* examples/web; do
	go -C "$module" build ./...
	go -C "$module" vet ./...
	# internal/arch is about the code, docs about pages, and page/browser needs Chromium.
	packages=$(go -C "$module" list ./... | grep -v -e /internal/redistest -e /internal/arch -e /docs -e /page/browser)
	# shellcheck disable=SC2086 # one argument for each
	go -C "$module" test -count=1 -timeout=15m $packages
done
