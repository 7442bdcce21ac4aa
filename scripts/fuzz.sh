#!/bin/sh
# Runs every fuzz test of the root package for a while, one after the other, as
# Go fuzzes only one at a time:
#   scripts/fuzz.sh [DURATION]
set -eu

duration=${1:-20s}
# Both steps on their own, so that a failure of the first is not lost in a pipe.
listed=$(go test -list '^Fuzz' .)
names=$(printf '%s\n' "$listed" | grep '^Fuzz' || true)
if [ -z "$names" ]; then
	echo "the root package has no Fuzz functions" >&2
	exit 1
fi
for name in $names; do
	echo "fuzzing $name for $duration"
	go test -run '^$' -fuzz "^$name\$" -fuzztime "$duration" .
done
