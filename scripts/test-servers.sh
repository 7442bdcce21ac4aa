#!/bin/sh
# Runs the tests on other servers than the system's, see install-servers.sh:
#   scripts/test-servers.sh        the tests of the library that use a real server
#   scripts/test-servers.sh all    all tests of the library, and torture
# In the first case miniredis is left out: what runs there is the same on every
# server, and make test has run it.
set -eu
cd "$(dirname "$0")/.."

servers=$(scripts/install-servers.sh)
failed=

if [ "${1:-}" = all ]; then
	for server in $servers; do
		echo "all tests on $server"
		LOCKREGISTRY_REDIS_SERVER=$server go test -race -count=1 -timeout 10m ./... || failed=yes
		(cd torture && LOCKREGISTRY_REDIS_SERVER=$server GOWORK=off go test -race -count=1 -timeout 10m ./...) || failed=yes
	done
else
	# A test that uses a real server says so in its body; see kit_test.go.
	names=$(awk '
		/^func / { name = "" }
		/^func Test[^(]*\(t \*testing\.T\)/ { name = $2; sub(/\(.*/, "", name) }
		name != "" && /[wW]orlds\(|realWorld\(|redistest\.Start/ { print name; name = "" }
	' ./*_test.go | sort -u)
	if [ -z "$names" ]; then
		echo "no test of the root package uses a real server" >&2
		exit 1
	fi
	binary=$(mktemp)
	trap 'rm -f "$binary"' EXIT
	go test -race -c -o "$binary" .
	for server in $servers; do
		echo "tests on $server"
		LOCKREGISTRY_REDIS_SERVER=$server "$binary" -test.timeout 10m \
			-test.run "^($(echo "$names" | tr '\n' '|' | sed 's/|$//'))\$" \
			-test.skip '/^miniredis$|//^miniredis$|///^miniredis$' || failed=yes
	done
fi
if [ -n "$failed" ]; then
	echo "test-servers: see above" >&2
	exit 1
fi
