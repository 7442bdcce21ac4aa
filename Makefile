# `make` alone lists the targets, each with the text after its `##`.

ARGS ?=
FUZZTIME ?= 20s
TESTTIMEOUT ?= 35m

.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## run the demonstration; ARGS="..." is passed on
	go run ./examples/demo $(ARGS)

.PHONY: stack
stack: ## run two instances of the example service, lockreg and Prometheus with the alerts, to look at; Ctrl-C ends it
	@scripts/ensure-redis.sh
	@scripts/ensure-prometheus.sh
	scripts/stack.sh

.PHONY: service
service: ## test the example service, two instances of it on a real server, its alerts, its dashboard and the stack, in two minutes
	@scripts/ensure-cgo.sh
	@scripts/ensure-redis.sh
	@scripts/ensure-prometheus.sh
	cd examples/service && GOWORK=off ../../scripts/go-test.sh -race -count=1 -timeout=$(TESTTIMEOUT) .

.PHONY: test
test: ## run all tests of the library with the race detector, on real servers; installs what is missing
	@echo "All tests of the library take four to five minutes on two cores."
	@scripts/ensure-cgo.sh
	@scripts/ensure-redis.sh
	scripts/go-test.sh -race -timeout=$(TESTTIMEOUT) $$(go list ./internal/redistest ./test/... ./internal/wake ./leader ./... | grep -v -e /test/alone -e /test/bench -e /internal/arch) # the longest first, and among them one that waits
	scripts/go-test.sh -timeout=$(TESTTIMEOUT) ./test/alone

.PHONY: servers
servers: ## install Redis 6.2, Redis 8.2 and Valkey into .servers, for the tests; needs python3
	@scripts/install-servers.sh

.PHONY: test-servers
test-servers: ## run the tests that use a real server on the servers of `make servers`
	@scripts/ensure-cgo.sh
	@scripts/test-servers.sh

.PHONY: test-servers-all
test-servers-all: ## run all tests of the library, and torture, on the servers of `make servers`
	@scripts/ensure-cgo.sh
	@scripts/test-servers.sh all

.PHONY: lint
lint: ## check format, code and module files of every module
	@scripts/lint.sh

.PHONY: fuzz
fuzz: ## run each fuzz test for a while; FUZZTIME=20s
	@scripts/ensure-redis.sh
	@scripts/fuzz.sh $(FUZZTIME)

.PHONY: cover
cover: ## report in coverage.html how much of the library its tests run; fails below 95 %
	@scripts/ensure-redis.sh
	scripts/cover.sh

.PHONY: vulnerabilities
vulnerabilities: ## look for known vulnerabilities in what each module uses
	scripts/vulnerabilities.sh

.PHONY: api
api: ## compare the exported names with those of the newest release, or of COMMIT=...
	scripts/api.sh $(COMMIT)

.PHONY: release
release: ## make the tags of VERSION=v0.1.0, and build lockreg for six platforms into dist/; pushes nothing
	scripts/release.sh $(VERSION)

.PHONY: image
image: ## build the image lockreg:VERSION from what `make release` has put into dist/; needs docker
	docker build -f cmd/lockreg/Dockerfile --build-arg VERSION=$(VERSION) --build-arg TARGETARCH=$$(go env GOARCH) -t lockreg:$(VERSION) dist

.PHONY: bench-core
bench-core: ## run the benchmarks of the library's own parts
	go test -run '^$$' -bench . -benchmem ./test/bench ./internal/owner

.PHONY: bench-scripts
bench-scripts: ## measure the scripts beside those of COMMIT=...: server time and bytes of each; ONLY=spring measures some
	@scripts/ensure-redis.sh
	scripts/bench-scripts.sh $(COMMIT) $(ONLY)

.PHONY: script
script: ## print a script as servers get it, NAME=spring_release; without NAME their names
	@go run ./internal/protocol/printscripts $(NAME)

.PHONY: torture
torture: ## check histories of many processes under network failures, and that no late command harms a later hold
	@scripts/ensure-cgo.sh
	@scripts/ensure-redis.sh
	cd test/torture && GOWORK=off ../../scripts/go-test.sh -race -count=1 -timeout=$(TESTTIMEOUT) ./...

.PHONY: torture-full
torture-full: ## run torture with all cases of fairness and of fleets
	@scripts/ensure-cgo.sh
	@scripts/ensure-redis.sh
	cd test/torture && GOWORK=off go test -race -count=1 -timeout=$(TESTTIMEOUT) ./... -full

.PHONY: adapters
adapters: ## test the modules in contrib, and how the benchmarks count
	@scripts/ensure-cgo.sh
	@scripts/ensure-redis.sh
	@set -e; for module in contrib/*; do \
		echo "$$module"; (cd "$$module" && GOWORK=off ../../scripts/go-test.sh -race -timeout=$(TESTTIMEOUT) ./...); \
	done
	cd bench && GOWORK=off ../scripts/go-test.sh -timeout=$(TESTTIMEOUT) ./...

.PHONY: commands
commands: ## run the commands that the pages show
	@scripts/ensure-cgo.sh
	@scripts/ensure-redis.sh
	go test -count=1 -run TestShell ./docs -commands

.PHONY: lockreg
lockreg: ## build the command line into ./lockreg
	cd cmd/lockreg && GOWORK=off go build -o ../../lockreg .

.PHONY: test-lockreg
test-lockreg: ## test the command line on real servers, and its page in Chromium
	@scripts/ensure-cgo.sh
	@scripts/ensure-redis.sh
	@scripts/ensure-chromium.sh
	@scripts/ensure-axe.sh
	cd cmd/lockreg && GOWORK=off ../../scripts/go-test.sh -race -timeout=$(TESTTIMEOUT) ./...

.PHONY: test-page
test-page: ## test the page of the command line alone
	@scripts/ensure-cgo.sh
	@scripts/ensure-redis.sh
	@scripts/ensure-chromium.sh
	@scripts/ensure-axe.sh
	cd cmd/lockreg && GOWORK=off ../../scripts/go-test.sh -race -timeout=$(TESTTIMEOUT) ./page/...

.PHONY: pictures
pictures: ## take the pictures of the page in the README of lockreg
	@scripts/ensure-chromium.sh
	cd cmd/lockreg && GOWORK=off go test -count=1 -run Pictures ./page/browser -pictures $(CURDIR)/cmd/lockreg/pictures

SOAK ?= 10m

.PHONY: soak
soak: ## run storms of torture for SOAK=10m; prints the seed, and SEED=... repeats it
	@scripts/ensure-cgo.sh
	@scripts/ensure-redis.sh
	cd test/torture && GOWORK=off go test -race -timeout 0 -v -run Soak . -soak $(SOAK) $(if $(SEED),-seed $(SEED))

.PHONY: failover
failover: ## kill, freeze, promote and reshard real clusters and Sentinel deployments, in about a minute and a half; prints a table
	@scripts/ensure-cgo.sh
	@scripts/ensure-redis.sh
	cd test/failover && GOWORK=off ../../scripts/go-test.sh -race -count=1 -timeout=20m -v .

.PHONY: failover-long
failover-long: ## run ten rounds of each event, thirty kills of a master, and thirty masters that come back, in about an hour
	@scripts/ensure-cgo.sh
	@scripts/ensure-redis.sh
	cd test/failover && GOWORK=off go test -race -count=1 -timeout 2h -v . -long

.PHONY: ledger
ledger: ## test the example of fencing: a SQL table that refuses a writer that was stopped
	@scripts/ensure-redis.sh
	cd examples/ledger && GOWORK=off ../../scripts/go-test.sh -count=1 -timeout=$(TESTTIMEOUT) .

.PHONY: web
web: ## test the recipes for chi, Echo, gRPC, a queue and a transaction
	@scripts/ensure-cgo.sh
	cd examples/web && GOWORK=off ../../scripts/go-test.sh -race -count=1 -timeout=$(TESTTIMEOUT) .

.PHONY: docs
docs: ## build the site of docs/ in .site/dist, and test it in Chromium; needs npm
	@scripts/ensure-chromium.sh
	@scripts/ensure-axe.sh
	scripts/site.sh
	cd test/site && GOWORK=off ../../scripts/go-test.sh -count=1 -timeout=$(TESTTIMEOUT) .

.PHONY: interop
interop: ## lock against the real Java libraries, both ways; needs a JDK 17 and Maven
	@scripts/ensure-cgo.sh
	@scripts/ensure-redis.sh
	@scripts/ensure-java.sh
	cd test/interop && GOWORK=off ../../scripts/go-test.sh -race -v -timeout=20m .

.PHONY: interop-all
interop-all: ## run interop with the long tests for every version of the Java libraries
	@scripts/ensure-cgo.sh
	@scripts/ensure-redis.sh
	@scripts/ensure-java.sh
	cd test/interop && GOWORK=off go test -race -v -timeout 40m . -all -rounds 20 -sections 20000

.PHONY: soak-interop
soak-interop: ## run a million sections of Java and Go processes together, and compare their shares
	@scripts/ensure-redis.sh
	@scripts/ensure-java.sh
	cd test/interop && GOWORK=off go test -v -run Soak -timeout 3h . -sections 1000000 -share 8s

.PHONY: specs
specs: ## check the specifications of the queue and of permits, and that their mutants fail; needs a JDK 17 and Maven
	@scripts/specs.sh

.PHONY: specs-full
specs-full: ## run specs with all questions in full, and with the mutants that take long
	@scripts/specs.sh full

.PHONY: specs-large
specs-large: ## run specs with more calls, faults and time; takes hours
	@scripts/specs.sh large

.PHONY: bench
bench: ## measure this library beside its peers, in 35 to 50 minutes; writes bench/RESULTS.md, docs/performance.md, figures of two other pages
	@scripts/ensure-redis.sh
	cd bench && GOWORK=off go run . -write ..

.PHONY: bench-before
bench-before: ## measure this library beside its last version without a queue in Redis; ARGS="-only paths" runs less
	@scripts/ensure-redis.sh
	scripts/bench-before.sh $(ARGS)

.PHONY: bench-quick
bench-quick: ## run bench in about five minutes; only prints; ARGS="-only rush" runs less
	@scripts/ensure-redis.sh
	cd bench && GOWORK=off go run . -quick $(ARGS)

.PHONY: bench-fleet
bench-fleet: ## run hundreds of processes, 10 000 registries on a server, Sentinel and a cluster, in 25 min; writes docs/scale.md
	@scripts/ensure-redis.sh
	cd bench && GOWORK=off go run . -only fleet -write .. $(ARGS)

.PHONY: bench-fleet-quick
bench-fleet-quick: ## run bench-fleet with 50 and 200 processes in a minute; only prints
	@scripts/ensure-redis.sh
	cd bench && GOWORK=off go run . -quick -only fleet $(ARGS)
