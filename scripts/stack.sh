#!/usr/bin/env bash
# Starts everything to look at the locks of a service, on this machine and without containers: a Redis, two instances of the
# example service, lockreg with its page and its metrics, and Prometheus with the alerts of deploy/prometheus. Prints the
# addresses, and stops all of it when it ends, by Ctrl-C for instance. The variables change the ports.
set -euo pipefail
cd "$(dirname "$0")/.."

redis=${STACK_REDIS:-127.0.0.1:16379}
first=${STACK_FIRST:-127.0.0.1:18081}
second=${STACK_SECOND:-127.0.0.1:18082}
page=${STACK_PAGE:-127.0.0.1:18080}
prometheus=${STACK_PROMETHEUS:-127.0.0.1:19090}
lease=60s # the library's default: a holder that is killed shows for half of it
scrape=${STACK_SCRAPE:-5s}

work=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; wait || true; rm -rf "$work"' EXIT
trap 'exit 0' INT TERM

GOWORK=off go build -C examples/service -o "$work/service" .
GOWORK=off go build -C cmd/lockreg -o "$work/lockreg" .

"${LOCKREGISTRY_REDIS_SERVER:-redis-server}" --bind "${redis%:*}" --port "${redis##*:}" --dir "$work" --save '' >"$work/redis.log" &
until grep -q 'Ready to accept connections' "$work/redis.log"; do
	kill -0 $! || { cat "$work/redis.log"; exit 1; }
	sleep 0.1
done
export REDIS_URL=redis://$redis
for address in "$first" "$second"; do
	"$work/service" -listen "$address" -lease "$lease" &
done
"$work/lockreg" serve shop --listen "$page" --metrics --every "$scrape" &
cat >"$work/prometheus.yml" <<END
global: {scrape_interval: $scrape, evaluation_interval: $scrape}
rule_files: ["$PWD/deploy/prometheus/rules.yml"]
scrape_configs:
  - job_name: service
    static_configs: [{targets: ["$first", "$second"]}]
  - job_name: lockreg
    static_configs: [{targets: ["$page"]}]
END
prometheus --config.file="$work/prometheus.yml" --storage.tsdb.path="$work/prometheus" --web.listen-address="$prometheus" --log.level=warn &

cat <<END

Redis        redis://$redis
the service  http://$first and http://$second: curl -X POST http://$first/orders/42/ship
locks        http://$page, metrics at http://$page/metrics
Prometheus   http://$prometheus/alerts

Kill an instance of the service, and look at the page and the alerts: pkill -9 -f -- '-listen $first'
END
wait
