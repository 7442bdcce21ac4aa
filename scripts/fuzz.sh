#!/bin/sh
# Runs every fuzz test of the library for a while, one after the other, as go test can only fuzz one at a time:
#   scripts/fuzz.sh [DURATION]
set -eu

duration=${1:-20s}
# Each step on its own, so that a failure of the first is not lost in a pipe.
packages=$(go list ./...)
some=
for package in $packages; do
	listed=$(go test -list '^Fuzz' "$package")
	for name in $(printf '%s\n' "$listed" | grep '^Fuzz' || true); do
		some=$name
		echo "fuzzing $name of $package for $duration"
		go test -run '^$' -fuzz "^$name\$" -fuzztime "$duration" "$package"
	done
done
if [ -z "$some" ]; then
	echo "the library has no Fuzz functions" >&2
	exit 1
fi
