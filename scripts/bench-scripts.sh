#!/bin/sh
# Measures the scripts beside those of another commit that has this benchmark too, in seven rounds that alternate. Prints the
# median of each script's server time and its bytes, before and after, and their ratios.
#
#   scripts/bench-scripts.sh COMMIT [PATTERN]
set -eu
cd "$(dirname "$0")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/before"
git archive "$1" | tar -x -C "$work/before"
(cd "$work/before" && GOWORK=off go test -c -o "$work/before.test" ./internal/protocol)
GOWORK=off go test -c -o "$work/after.test" ./internal/protocol

for round in 1 2 3 4 5 6 7; do
	for version in before after; do
		"$work/$version.test" -test.run '^$' -test.bench "Server/${2:-}" -test.benchtime 3000x >"$work/out"
		awk -v version=$version '/^BenchmarkServer/ { sub(/^BenchmarkServer\//, "", $1); sub(/-[0-9]+$/, "", $1); print version, $1, $5, $3 }' \
			"$work/out" >>"$work/all"
	done
	echo "round $round of 7" >&2
done
sort -k2,2 -k1,1r -k3,3n "$work/all" | awk '
	{ count[$1, $2]++; times[$1, $2, count[$1, $2]] = $3; bytes[$1, $2] = $4; names[$2] = 1 }
	END {
		for (name in names) {
			n = count["before", name]; m = count["after", name]
			if (!n || !m) { continue }
			before = times["before", name, int((n + 1) / 2)]; after = times["after", name, int((m + 1) / 2)]
			printf "%-44s %7.2f µs %7.2f µs  %.3f   %4d B %4d B  %.3f\n", name, before, after, after / before,
				bytes["before", name], bytes["after", name], bytes["after", name] / bytes["before", name]
		}
	}' | sort
