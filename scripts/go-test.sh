#!/usr/bin/env bash
# Runs go test: scripts/go-test.sh [-FLAG[=VALUE]...] PACKAGE...
# Three packages at a time, since many tests wait. It tells now and then where it is, and at the end how long it took. Each test
# has one try.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

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

# run ARG... is go test.
run() {
	if [ -n "$verbose" ]; then
		go test "$@" 2>&1
	else
		go test -json "$@" 2>&1 | "$work/progress"
	fi
}

# The race detector sleeps for a second at the end of each program, for goroutines that still run. The tests leave none.
export GORACE="atexit_sleep_ms=0 ${GORACE:-}"

# The garbage is collected a quarter as often as usual: a tenth of the processor's time, for some hundred megabytes.
export GOGC=${GOGC:-400}

# The race detector does not look at the Lua interpreter of the embedded server, in which a fifth of the processor's time went: it
# is one goroutine's at a time. It must look at the rest of that server: generic functions of the standard library that are
# compiled for one package serve all others, which would then seem to have races. `make lint` has a look at what go vet finds.
build=()
[ -z "$race" ] || build=(-race '-gcflags=github.com/yuin/gopher-lua/...=-race=false')
flags+=("${build[@]}" -vet=off)

# All cores compile what the packages need, and link no test twice.
echo "... building the tests"
for _ in 1 2 3; do # what cannot be downloaded is tried again
	! go list "${build[@]}" -test -export "${packages[@]}" >/dev/null 2>&1 || break
done
result=passed
run -p 3 "${flags[@]}" "${packages[@]}" || result=failed
printf '%s after %d s\n' "$result" "$SECONDS"
[ "$result" = passed ]
