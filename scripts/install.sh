#!/bin/sh
# Installs what the tests and specifications need from the system's packages, where it is missing.
set -eu
cd "$(dirname "$0")"
./ensure-cgo.sh
./ensure-redis.sh
./ensure-java.sh
./ensure-chromium.sh
./ensure-prometheus.sh
