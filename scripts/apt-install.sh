#!/bin/sh
# Installs Debian packages where that is possible without asking anybody:
#   scripts/apt-install.sh PACKAGE...
# Where it is not, fails and says what to install by hand.
set -eu

give_up() {
	echo "cannot install $*: $reason" >&2
	echo "install by hand (Debian, Ubuntu: sudo apt-get install $*) and try again" >&2
	exit 1
}

as_root=
if ! command -v apt-get >/dev/null; then
	reason="this system has no apt-get"
	give_up "$@"
elif [ "$(id -u)" -ne 0 ]; then
	if ! sudo -n true 2>/dev/null; then
		reason="not root, and sudo asks for a password"
		give_up "$@"
	fi
	as_root="sudo -n"
fi

# One at a time: several stages may call this at once.
if command -v flock >/dev/null; then
	exec 9>"${TMPDIR:-/tmp}/lockregistry-apt-install.$(id -u).lock"
	flock 9
fi

# apt runs apt-get, again if a download fails. Other programs may be installing, too.
apt() {
	$as_root env DEBIAN_FRONTEND=noninteractive \
		apt-get -qq -o Acquire::Retries=3 -o DPkg::Lock::Timeout=600 -o Dpkg::Use-Pty=0 "$@" </dev/null 9>&-
}

echo "installing $*"
# Quiet, except for errors, and without prompts. apt-get does not wait for the lock of the package lists, hence the retries.
for pause in 5 20 60 0; do
	if apt update; then
		break
	fi
	[ "$pause" -gt 0 ] || exit 1
	sleep "$pause"
done
apt install --yes --no-install-recommends "$@" >/dev/null
