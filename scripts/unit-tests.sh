#!/usr/bin/env bash
# Builds everything, and runs the tests that need no Redis server, for systems that have none.
set -euo pipefail
cd "$(dirname "$0")/.."
export GOWORK=off

go build ./...
go vet ./...
for module in cmd/lockreg gocronlock lockotel; do
	go -C "$module" build ./...
	go -C "$module" vet ./...
done
servers=$(go list -f '{{.ImportPath}} {{join .TestImports " "}} {{join .XTestImports " "}}' ./... | grep -e redistest -e /internal/arch | cut -d' ' -f1)
go list ./... | grep -vxF "$servers" | xargs go test -count=1
