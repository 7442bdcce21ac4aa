#!/bin/sh
# Checks every module of the workspace: golangci-lint with .golangci.yml, and
# that go.mod and go.sum say exactly what the code needs. Changes nothing.
set -eu

# The linter is built from a module of its own, in which its many dependencies
# stay. Outside the workspace, since go.work does not list it; Go's build cache
# keeps the program, so that only the first run builds it.
for _ in 1 2 3; do # what cannot be downloaded is tried again
	! linter=$(GOWORK=off go -C internal/tools tool -n golangci-lint) || break
done
modules=$(go list -m -f '{{.Dir}}')
failed=

for module in $modules; do
	echo "golangci-lint in $module"
	(cd "$module" && "$linter" run --allow-parallel-runners ./...) || failed=yes
done

# .github/workflows vets macOS, too. There code for Unix fails as it does here, but code for Windows only there.
for module in . cmd/lockreg contrib/* examples/web; do
	echo "go vet for Windows in $module"
	(cd "$module" && GOWORK=off GOOS=windows go vet ./...) || failed=yes
done

# What users copy has none of the mistakes that lockvet finds.
vet=$(mktemp)
trap 'rm -f "$vet"' EXIT
GOWORK=off go -C contrib/lockvet build -o "$vet" .
for module in . cmd/lockreg examples/ledger examples/service examples/web contrib/gocronlock contrib/lockgoredis contrib/lockotel contrib/lockprom; do
	echo "lockvet in $module"
	packages=./...
	[ "$module" != . ] || packages="./examples/... ./leader ./lockhttp ./locktest"
	# shellcheck disable=SC2086 # one argument for each
	(cd "$module" && GOWORK=off go vet -vettool="$vet" $packages) || failed=yes
done

# Which package imports which, and how long files and functions are.
echo "go test in internal/arch"
go test ./internal/arch || failed=yes

# The subjects of commits are read in one line.
long=$(git log -100 --format=%s | awk 'length > 72')
if [ -n "$long" ]; then
	printf 'subjects of commits with more than 72 characters:\n%s\n' "$long"
	failed=yes
fi

# A module is used without the workspace by everybody but us, so it has to be
# right on its own. With -e, because tests of some dependencies import what not
# every proxy has, or not always; that concerns nothing that is built here.
for module in $modules "$PWD/internal/tools" "$PWD/internal/tools/release"; do
	echo "go mod tidy -e -diff in $module"
	diff=$(cd "$module" && GOWORK=off go mod tidy -e -diff 2>/dev/null | grep '^[-+][^-+]' | grep -v ' *github.com/redis/rueidis/rueidiscompat ') || true
	if [ -n "$diff" ]; then
		printf '%s\n' "$diff"
		failed=yes
	fi
done

if [ -n "$failed" ]; then
	echo "lint: see above" >&2
	exit 1
fi
