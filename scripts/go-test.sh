#!/usr/bin/env bash
# Runs go test: scripts/go-test.sh [-FLAG[=VALUE]...] PACKAGE...
# Three packages at a time, since many tests wait. It tells now and then where it is, and at the end how long it took and what was
# tried again. A test that fails on a machine that is busy with something else has two more chances, alone; all that was
# printed stays to be read. A data race has none.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
log=$work/log
again=

flags=()
packages=()
race=
verbose=
for arg in "$@"; do
	case $arg in
	-*) flags+=("$arg") ;;
	*) packages+=("$arg") ;;
	esac
	[[ $arg != -race ]] || race=-race
	[[ $arg != -v ]] || verbose=yes
done
if [ -z "$verbose" ]; then
	GOWORK=off go -C "$root" build -o "$work/progress" ./scripts/progress
fi

# run ARG... is go test, and keeps what it prints.
run() {
	if [ -n "$verbose" ]; then
		go test "$@" 2>&1 | tee "$log" && return 0
	else
		go test -json "$@" 2>&1 | "$work/progress" | tee "$log" && return 0
	fi
	if grep -q '^ *WARNING: DATA RACE' "$log"; then
		finish failed
	fi
	return 1
}

# failed lists the packages that failed, each with a pattern of the tests to run again: all of them when it ended otherwise
# than with its tests.
failed() {
	awk '
		/^--- FAIL: / && $3 !~ "/" { tests = tests (tests == "" ? "" : "|") $3 }
		/^(panic|fatal error): / { broken = 1 }
		/^FAIL\t/ {
			print $2, tests == "" || broken ? "." : "^(" tests ")$"
			tests = ""; broken = 0
		}
	' "$log"
}

# finish RESULT ends the script with a line that tells the result.
finish() {
	printf '%s after %d s; tried again: %s\n' "$1" "$SECONDS" "${again:-nothing}"
	[ "$1" = passed ]
	exit
}

# The race detector sleeps for a second at the end of each program, for goroutines that still run. The tests leave none.
export GORACE="atexit_sleep_ms=0 ${GORACE:-}"

# The garbage is collected a quarter as often as usual: a tenth of the processor's time, for some hundred megabytes.
export GOGC=${GOGC:-400}

# The race detector does not look at the Lua interpreter of the embedded server, in which a fifth of the processor's time went: it
# is one goroutine's at a time. Without the rest of that server it would be wrong: what is generic in the standard library is
# compiled once for all. `make lint` has a look at what go vet finds.
build=()
[ -z "$race" ] || build=(-race '-gcflags=github.com/yuin/gopher-lua/...=-race=false')
flags+=("${build[@]}" -vet=off)

# All cores compile what the packages need, and link no test twice.
echo "... building the tests"
for _ in 1 2 3; do # what cannot be downloaded is tried again
	! go list "${build[@]}" -test -export "${packages[@]}" >/dev/null 2>&1 || break
done
if run -p 3 "${flags[@]}" "${packages[@]}"; then
	finish passed
fi
lost=$(failed)
for _ in 1 2; do
	if [ -z "$lost" ]; then
		finish failed # no package could be tested
	fi
	list=$lost
	lost=
	while read -r package tests; do
		printf '+ again, alone: %s %s\n' "$package" "$tests"
		again+="${again:+, }${package##*/} $tests"
		if ! run -count=1 "${flags[@]}" -run "$tests" "$package"; then
			lost+=${lost:+$'\n'}$(failed)
		fi
	done <<<"$list"
	if [ -z "$lost" ]; then
		finish passed
	fi
done
printf 'failed:\n%s\n' "$lost" >&2
finish failed
