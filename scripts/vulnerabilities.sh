#!/usr/bin/env bash
# Looks for known vulnerabilities in what each module uses, in the database of the Go project.
set -euo pipefail
cd "$(dirname "$0")/.."
export GOWORK=off

check=$(go -C internal/tools/release tool -n govulncheck)
failed=
while read -r file; do
	module=$(dirname "$file")
	echo "govulncheck in $module"
	"$check" -C "$module" ./... || failed=yes
done < <(git ls-files 'go.mod' '*/go.mod' | grep -v '^internal/tools/')
[ -z "$failed" ]
