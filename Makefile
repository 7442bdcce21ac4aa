# `make` alone lists the targets, each with the text after its `##`.

ARGS ?=
FUZZTIME ?= 20s
TESTTIMEOUT ?= 10m

.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## run the demonstration; ARGS="..." is passed on
	go run ./examples/demo $(ARGS)

.PHONY: test
test: ## run all tests of the library with the race detector, on real servers; installs what is missing
	@scripts/ensure-cgo.sh
	@scripts/ensure-redis.sh
	go test -race -timeout $(TESTTIMEOUT) ./...

.PHONY: lint
lint: ## check format, code and module files of every module
	@scripts/lint.sh

.PHONY: fuzz
fuzz: ## run each fuzz test for a while; FUZZTIME=20s
	@scripts/ensure-redis.sh
	@scripts/fuzz.sh $(FUZZTIME)

.PHONY: bench-core
bench-core: ## run the benchmarks of the library's own parts
	go test -run '^$$' -bench . -benchmem .
