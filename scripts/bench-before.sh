#!/bin/sh
# Measures this library beside an earlier version of it, which takes the place of the peers, in one run. The version is the
# commit REF, or, without REF, the last one before waiting calls queued in Redis, whose tree is in test/torture/testdata.
# Arguments go to the program; see bench/README.md.
set -eu
cd "$(dirname "$0")/../bench"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The old tree, as a module of another name.
mkdir "$work/before"
if [ -n "${REF:-}" ]; then
	git -C .. archive "$REF" | tar -x -C "$work/before"
else
	tar -xzf ../test/torture/testdata/before-the-queue.tar.gz -C "$work/before"
fi
find "$work/before" -name '*.go' -o -name go.mod | while read -r file; do
	sed -i 's#lockregistry/lockregistry#lockregistry/before#' "$file"
done

# The contender is a copy of this library's, with other names, without semaphores and several paths, and with the older name of
# an option.
sed -e '/if l.permits > 0/,/^\t}/d' -e '/if l.several > 0/,/^\t}/d' -e '/^\/\/ permitSession/,/^\/\/ registryReaders/d' \
	-e 's#"github.com/lockregistry/lockregistry"#lockregistry "github.com/lockregistry/before"#' \
	-e 's/"lockregistry"/"before"/' -e 's/role:     subject/role:     rival/' \
	-e 's/thisLibrary/before/g' -e 's/openRegistry/openBefore/g' -e 's/registryLocks/beforeLocks/g' \
	-e 's/registrySession/beforeSession/g' -e 's/registryReaders/beforeReaders/g' -e 's/readerSession/beforeReaderSession/g' \
	lockregistry.go >"$work/contender.go"
if ! grep -q '^func WithLease(' "$work"/before/*.go; then
	sed -i 's/WithLease(/WithExpiry(/' "$work/contender.go"
fi
cat >>"$work/contender.go" <<'END'

func init() { contenders = []contender{bareFloor, directedFloor, before, thisLibrary} }
END
# Peers hold fewer locks at once than this library; the version before holds as many.
sed 's/if c.role == rival {/if c.role == rival \&\& c.name != before.name {/' scenario_held.go >"$work/held.go"
printf '{"Replace": {"%s/before.go": "%s/contender.go", "%s/scenario_held.go": "%s/held.go"}}\n' "$PWD" "$work" "$PWD" "$work" \
	>"$work/overlay.json"

sed "s#=> \.\./#=> $(cd .. && pwd)/#" go.mod >"$work/bench.mod"
cp go.sum "$work/bench.sum"
{
	echo 'require github.com/lockregistry/before v0.0.0'
	echo "replace github.com/lockregistry/before => $work/before"
} >>"$work/bench.mod"

GOWORK=off go build -modfile="$work/bench.mod" -overlay="$work/overlay.json" -o "$work/bench" .
"$work/bench" "$@"
