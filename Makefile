# make test is the gate: formatting, vet, staticcheck and every test with the
# race detector, on a machine with Go, git, make, gcc (scripts/setup brings Redis).
GO ?= go
FUZZTIME ?= 60s

.PHONY: test setup lint unit build fuzz bench

test: setup lint unit

setup:
	./scripts/setup

lint:
	@out="$$(gofmt -l .)"; if [ -n "$$out" ]; then echo "not gofmt-ed:"; echo "$$out"; exit 1; fi
	$(GO) vet ./...
	$(GO) tool staticcheck ./...

unit:
	$(GO) test -race -timeout 15m ./...

build:
	$(GO) build -o bin/coordinator ./cmd/coordinator

# Every fuzz target for FUZZTIME each (make fuzz FUZZTIME=10m).
fuzz:
	@for p in $$($(GO) list ./...); do \
	  for f in $$($(GO) test -list '^Fuzz' $$p | grep '^Fuzz' || true); do \
	    echo "== $$p $$f"; $(GO) test -run '^$$' -fuzz "^$$f$$" -fuzztime $(FUZZTIME) $$p || exit 1; \
	  done; \
	done

# Ratios against redis-cli and go-redis in one run; BENCH=quick or BENCH=large.
# BENCHFLAGS="-results bench/RESULTS.md" writes the table down.
bench: setup
	BENCH=$(BENCH) $(GO) run ./bench $(BENCHFLAGS)
