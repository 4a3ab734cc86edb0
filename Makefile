# make test is the gate: formatting, vet, staticcheck and every test with the
# race detector, on a machine with Go, git, make, gcc (scripts/setup brings Redis),
# after a few hundred runs of each fuzz target.
GO ?= go
FUZZTIME ?= 10m
KILLS ?= 200
LOSSES ?= 60
SOAK ?= 1h
TORTURE ?= 1h

.PHONY: test setup lint unit build fuzz crash soak torture clocks large bench

test: setup lint
	$(MAKE) fuzz FUZZTIME=500x
	$(MAKE) unit

setup:
	./scripts/setup

lint:
	@out="$$(gofmt -l .)"; if [ -n "$$out" ]; then echo "not gofmt-ed:"; echo "$$out"; exit 1; fi
	$(GO) vet ./...
	$(GO) tool staticcheck ./...
	GO="$(GO)" ./scripts/vulncheck

# Go starts tests in the order in which packages are named: the longest first, so
# that no core waits for one package in the end. A process with the race detector
# would sleep for a second before it ends, and tests end many. Vet has run in lint.
SLOW = ./statebackend/redis ./internal/torture/... ./snapshot/bolt ./coordinator ./snapshot ./cmd/coordinator ./statebackend/redis/track

unit:
	GORACE="atexit_sleep_ms=50 $$GORACE" $(GO) test -race -vet=off -timeout 15m $(SLOW) ./...

build:
	$(GO) build -o bin/coordinator ./cmd/coordinator

# Every fuzz target for FUZZTIME each, a time or a number of runs (make fuzz
# FUZZTIME=500x).
fuzz:
	GO="$(GO)" ./scripts/fuzz $(FUZZTIME)

# The built binary is killed KILLS times under write load, and its Redis LOSSES
# times (make crash KILLS=1000). KEYFRAME_SEED repeats a run's choices. Then it
# dies by its own hand at each named point of each operation (the gate goes
# through each point once).
crash: setup
	KEYFRAME_KILLS=$(KILLS) KEYFRAME_LOSSES=$(LOSSES) $(GO) test -v -count 1 -timeout 6h \
	  -run 'Killed|LostState|WhatWasDone' ./internal/torture
	KEYFRAME_CRASH_ALL=1 $(GO) test -v -count 1 -timeout 1h ./internal/torture/crash

# Checkpoints one after the other in each grade, under writers, with links that
# break and state that is lost (make soak SOAK=10m; the gate has a short form).
# KEYFRAME_SEED and SOAK_ROUND repeat a round's choices, SOAK_RATE is how many
# commands a second are written.
soak: setup
	SOAK=$(SOAK) $(GO) test -v -count 1 -timeout 24h -run '^TestSoak$$' ./internal/torture

# Workers on real data, two coordinators, a Redis, and a monkey that does to them
# whatever can be done on one machine; after each round invariants I1 to I10 are
# held against what is there (make torture TORTURE=10m; the gate has a short
# form). KEYFRAME_SEED and MONKEY_ROUND repeat a round's draws, MONKEY_FAULT draws
# only faults with that in their name.
torture: setup
	TORTURE=$(TORTURE) $(GO) test -v -count 1 -timeout 24h -run '^TestTorture$$' ./internal/torture/monkey

# The command, built with a wall clock that the test sets, as leader and standby
# (the gate has the same with clocks inside one process). Minutes to build.
clocks: setup
	$(GO) test -tags clocks -v -count 1 -timeout 30m -run '^TestWallClocksOfTheBuilt' ./cmd/coordinator

# Ten million fields in one hash and a million keys: the coordinator's memory.
large: setup
	KEYFRAME_LARGE=1 $(GO) test -v -count 1 -timeout 1h -run MemoryIsBounded ./internal/torture

# Ratios against redis-cli and go-redis in one run; BENCH=quick or BENCH=large.
# BENCHFLAGS="--results bench/RESULTS.md" writes the table down.
bench: setup
	BENCH=$(BENCH) $(GO) run ./cmd/coordinator bench $(BENCHFLAGS)
