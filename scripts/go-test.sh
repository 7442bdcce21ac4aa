#!/usr/bin/env bash
# Runs go test: scripts/go-test.sh [-FLAG[=VALUE]...] PACKAGE...
# Runs three packages at a time, since many tests wait. Prints its progress now and then, and at the end how long it took. Each
# test has one try.
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

# run ARG... runs go test.
run() {
	if [ -n "$verbose" ]; then
		go test "$@" 2>&1
	else
		go test -json "$@" 2>&1 | "$work/progress"
	fi
}

# The race detector sleeps for a second at the end of each program, for goroutines that are still running. The tests leave none.
export GORACE="atexit_sleep_ms=0 ${GORACE:-}"

# Collect garbage a quarter as often as usual: it saves a tenth of the CPU time for a few hundred megabytes.
export GOGC=${GOGC:-400}

# The race detector leaves out the Lua interpreter of the embedded server, which took a fifth of the CPU time: each interpreter
# belongs to one goroutine at a time. The rest of that server must be instrumented: generic functions of the standard library
# are compiled in one package and serve all others, which would then seem to have races. go vet is off, since `make lint` runs
# it.
build=()
[ -z "$race" ] || build=(-race '-gcflags=github.com/yuin/gopher-lua/...=-race=false')
flags+=("${build[@]}" -vet=off)

# Compile what the packages need on all cores, without linking any test twice.
echo "... building the tests"
for _ in 1 2 3; do # failed downloads are tried again
	! go list "${build[@]}" -test -export "${packages[@]}" >/dev/null 2>&1 || break
done
result=passed
run -p 3 "${flags[@]}" "${packages[@]}" || result=failed
printf '%s after %d s\n' "$result" "$SECONDS"
[ "$result" = passed ]
