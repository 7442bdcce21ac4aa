#!/bin/sh
# Runs the tests on other servers than the system's, see install-servers.sh:
#   scripts/test-servers.sh        the tests of the library that use a real server and may behave differently on another one
#   scripts/test-servers.sh all    all tests of the library, and torture
# In the first case miniredis is left out: what runs there is the same on every server, and make test has run it. The tests of
# same_files and same_tests are left out, too: they depend on this library alone, and the commands that they send are those of
# other tests. The tests of own_files run on every server: they are about what a server does itself, such as scripts, messages
# and permissions. Each of the other tests runs on one of the servers.
set -eu
cd "$(dirname "$0")/.."

servers=$(scripts/install-servers.sh)
failed=
same_files="lock/acquire lease/unreachable lease/at_least cluster/failover operator/log lock/nesting operator/observer lock/once"
same_files="$same_files alone/scale waiting/stress"
own_files="several/acquire_all faults/connection faults/unlink lease/fencing operator/force_unlock operator/inspect operator/locks"
own_files="$own_files operator/record operator/stats registry/open registry/options registry/permissions shared/redisson"
own_files="$own_files shared/semaphore_redisson waiting/wakeup waiting/wakeup_refused cluster/acquire_all cluster/fencing cluster/force_unlock"
own_files="$own_files cluster/inspect cluster/locks cluster/queue cluster/redisson cluster/semaphore cluster/wakeup"
same_tests="TestQueue_ThoseWithoutATicketDoNotStarve TestQueue_GivingUpInTheQueue TestSharedClient_ManyRegistriesOfOneClient TestSilence_ManyCallsOnAFrozenServer"
same_tests="$same_tests TestReplicas_ManyCallsWithReplicas TestAcquireAll_HasNoDeadlock TestAcquireAll_OfManyPaths TestLock_ManyPathsAtOnce TestFailover_CommandsGoToTheSuccessor TestQueue_ReadersAndWritersOfManyProcessesOnACluster"

if [ "${1:-}" = all ]; then
	for server in $servers; do
		echo "all tests on $server"
		LOCKREGISTRY_REDIS_SERVER=$server go test -race -count=1 -timeout 10m ./... || failed=yes
		LOCKREGISTRY_REDIS_SERVER=$server go test -count=1 -timeout 10m ./test/alone || failed=yes
		(cd test/torture && LOCKREGISTRY_REDIS_SERVER=$server GOWORK=off go test -race -count=1 -timeout 10m ./...) || failed=yes
	done
else
	# A test that uses a real server says so in its body; see test/internal/kit/world.go. The server is chosen by the test's name
	# alone, so that a new test does not move others to servers on which nobody has run them.
	names=$(awk -v files="$same_files" -v own="$own_files" -v tests="$same_tests" '
		function server(name,  i, sum) {
			for (i = 1; i <= length(name); i++) sum = (sum * 31 + index(letters, substr(name, i, 1))) % 9973
			return sum % 3 + 1
		}
		BEGIN {
			letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_"
			split(files " ", part, " "); for (i in part) same["./test/" part[i] "_test.go"] = 1
			split(own, part, " "); for (i in part) each["./test/" part[i] "_test.go"] = 1
			split(tests, part, " "); for (i in part) same[part[i]] = 1
		}
		same[FILENAME] { nextfile }
		/^func / { name = "" }
		/^func Test[^(]*\(t \*testing\.T\)/ { name = $2; sub(/\(.*/, "", name); if (same[name]) name = "" }
		name != "" && /[wW]orlds(Alone)?\(|[rR]ealWorld\(|redistest\.Start|ShareCluster\(/ { print name, each[FILENAME] ? "each" : server(name); name = "" }
	' ./test/*/*_test.go | sort -u)
	if [ -z "$names" ]; then
		echo "no test uses a real server" >&2
		exit 1
	fi
	# of N prints the tests for the N-th server.
	of() { echo "$names" | awk -v n="$1" '$2 == n || $2 == "each" { print $1 }' | paste -s -d '|' -; }
	work=$(mktemp -d)
	trap 'rm -rf "$work"' EXIT
	mkdir "$work/tests"
	# Build flags as in scripts/go-test.sh, so that what make test has compiled is not compiled again.
	race="-race -gcflags=github.com/yuin/gopher-lua/...=-race=false"
	# shellcheck disable=SC2046,SC2086 # two flags, and packages
	go test $race -c -o "$work/tests" $(go list ./test/... | grep -v /test/bench) # test/bench has no test
	go test -c -o "$work/tests" ./test/alone # nothing there is built with the race detector
	run() { # run SERVER NAMES AT_A_TIME
		# one after another: a theme has something to do while its own tests wait
		result=0
		for tests in "$work"/tests/*.test; do
			theme=$(basename "$tests" .test)
			(cd "test/$theme" && LOCKREGISTRY_REDIS_SERVER=$1 "$tests" -test.timeout 15m -test.parallel "$3" -test.run "^($2)\$" \
				-test.skip '/^miniredis$|//^miniredis$|///^miniredis$') || result=1
		done
		return $result
	}
	# Tests mostly wait, so all servers run their tests at the same time. Each test has one try.
	n=0
	for server in $servers; do
		n=$((n + 1))
		run "$server" "$(of $n)" 4 >"$work/$n" 2>&1 || touch "$work/$n.failed" &
	done
	wait
	n=0
	for server in $servers; do
		n=$((n + 1))
		echo "tests on $server"
		tail -n 1 "$work/$n"
		if [ -e "$work/$n.failed" ]; then
			cat "$work/$n"
			failed=yes
		fi
		# The tests of the scripts themselves run in their own package.
		# shellcheck disable=SC2086 # two flags
		LOCKREGISTRY_REDIS_SERVER=$server go test $race -vet=off -count=1 -run '^TestQueue_' ./internal/protocol || failed=yes
	done
	echo "$(echo "$names" | grep -c each) tests on each server, $(echo "$names" | grep -vc each) on one"
fi
if [ -n "$failed" ]; then
	echo "test-servers: see above" >&2
	exit 1
fi
