#!/usr/bin/env bash
# Runs go test: scripts/go-test.sh [-FLAG[=VALUE]...] PACKAGE...
# Packages have their turns one after another, since many tests are about time. A test that fails on a machine that is busy
# with something else has two more chances, alone; all that was printed stays to be read. A data race has none.
set -euo pipefail

log=$(mktemp)
trap 'rm -f "$log"' EXIT

# run ARG... is go test, and keeps what it prints.
run() {
	if go test "$@" 2>&1 | tee "$log"; then
		return 0
	fi
	if grep -q '^WARNING: DATA RACE' "$log"; then
		exit 1
	fi
	return 1
}

# failed lists the packages that failed, each with a pattern of the tests to run again: all of them when it ended otherwise
# than with its tests.
failed() {
	awk '
		/^--- FAIL: / { tests = tests (tests == "" ? "" : "|") $3 }
		/^(panic|fatal error): / { broken = 1 }
		/^FAIL\t/ {
			print $2, tests == "" || broken ? "." : "^(" tests ")$"
			tests = ""; broken = 0
		}
	' "$log"
}

flags=()
for arg in "$@"; do
	[[ $arg != -* ]] || flags+=("$arg")
done

# All cores build what the packages need.
go test -run '^$' "$@" >/dev/null 2>&1 || true
if run -p 1 "$@"; then
	exit 0
fi
lost=$(failed)
for _ in 1 2; do
	if [ -z "$lost" ]; then
		exit 1 # no package could be tested
	fi
	list=$lost
	lost=
	while read -r package tests; do
		printf '+ again, alone: %s %s\n' "$package" "$tests"
		if ! run -count=1 "${flags[@]}" -run "$tests" "$package"; then
			lost+=${lost:+$'\n'}$(failed)
		fi
	done <<<"$list"
	if [ -z "$lost" ]; then
		exit 0
	fi
done
printf 'failed:\n%s\n' "$lost" >&2
exit 1
