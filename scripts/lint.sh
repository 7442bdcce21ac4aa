#!/bin/sh
# Checks every module of the workspace: golangci-lint with .golangci.yml, and
# that go.mod and go.sum say exactly what the code needs. Changes nothing.
set -eu

# The linter is built from a module of its own, which keeps its many dependencies away from the others. Outside the workspace,
# since go.work does not list it. Go's build cache keeps the program, so that only the first run builds it.
for _ in 1 2 3; do # failed downloads are tried again
	! linter=$(GOWORK=off go -C internal/tools tool -n golangci-lint) || break
done
modules=$(go list -m -f '{{.Dir}}')
failed=

for module in $modules; do
	echo "golangci-lint in $module"
	(cd "$module" && "$linter" run --allow-parallel-runners ./...) || failed=yes
done

# .github/workflows vets macOS, too, for which any code for Unix fails here as well; code for Windows, and for processors of 32
# bits, fails only there.
for module in . cmd/lockreg contrib/* examples/web; do
	echo "go vet for Windows with 32 bits in $module"
	(cd "$module" && GOWORK=off GOOS=windows GOARCH=386 go vet ./...) || failed=yes
done

# Code that users copy must have none of the mistakes that lockvet finds.
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

# Subjects of commits must fit in one line.
long=$(git log -100 --format=%s | awk 'length > 72')
if [ -n "$long" ]; then
	printf 'subjects of commits with more than 72 characters:\n%s\n' "$long"
	failed=yes
fi

# Everybody but us uses a module without the workspace, so it has to be right on its own. With -e, because tests of some
# dependencies import modules that some proxies lack, or lack at times; nothing built here needs them.
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
