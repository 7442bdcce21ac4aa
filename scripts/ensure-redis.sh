#!/bin/sh
# Makes sure that the tests find a Redis server: the one that
# LOCKREGISTRY_REDIS_SERVER names, or redis-server on PATH, installed if need be.
set -eu

server=${LOCKREGISTRY_REDIS_SERVER:-redis-server}
if ! command -v "$server" >/dev/null; then
	if [ -n "${LOCKREGISTRY_REDIS_SERVER:-}" ]; then
		echo "LOCKREGISTRY_REDIS_SERVER names $server, which cannot be run" >&2
		exit 1
	fi
	if [ "$(uname)" = Darwin ]; then
		echo "redis-server is missing; install it: brew install redis" >&2
		exit 1
	fi
	"$(dirname "$0")/apt-install.sh" redis-server
fi
"$server" --version
