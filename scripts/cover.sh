#!/usr/bin/env bash
# Runs the tests of the library and reports their coverage. Fails below LEAST percent. coverage.html shows each line.
set -euo pipefail
cd "$(dirname "$0")/.."
export GOWORK=off
least=${LEAST:-95}

library=$(go list ./... | grep -v -e /examples/ -e /scripts/ -e /test/ -e /internal/arch -e /internal/redistest -e /internal/netfault -e /internal/peer)
# A test of internal/peer reads the output of its own program, to which coverage adds a line at the end.
mapfile -t tests < <(go list ./... | grep -v /internal/peer$)
go test -count=1 -timeout "${TESTTIMEOUT:-20m}" -coverpkg="$(echo "$library" | paste -sd,)" -coverprofile=coverage.out "${tests[@]}"
go tool cover -html=coverage.out -o coverage.html
total=$(go tool cover -func=coverage.out | awk '/^total:/ { print $3 + 0 }')
echo "The tests run $total % of the library; wanted: $least % at least."
awk "BEGIN { exit !($total >= $least) }"
