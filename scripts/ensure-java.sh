#!/bin/sh
# Makes sure that there is a JDK and Maven to build the Java side, installed if need be.
set -eu

missing=
command -v javac >/dev/null || [ -x "${JAVA_HOME:-/nowhere}/bin/javac" ] || missing="openjdk-17-jdk-headless"
command -v mvn >/dev/null || missing="$missing maven"
if [ -n "$missing" ]; then
	if [ "$(uname)" = Darwin ]; then
		echo "a JDK or Maven is missing; install them: brew install openjdk@17 maven" >&2
		exit 1
	fi
	# shellcheck disable=SC2086 # several packages
	"$(dirname "$0")/apt-install.sh" $missing
fi
mvn --version </dev/null | head -n 1
