.DEFAULT_GOAL := help
SHELL := /bin/bash

# The linter is built from source, at a fixed version. Go keeps the program in its cache. With more room for garbage, it
# needs less of the processor. It compiles the code as .ci/build does, and without the paths of this folder: so Go's cache has
# the packages, also for a clone in another folder. What is checked beside the tests is nice to them: some tests wait for
# seconds of real time, and shall begin early.
ALIKE := CGO_ENABLED=0 "GOFLAGS=$(GOFLAGS) -trimpath"
BUILD_TAGS := nomsgpack,grpcnotrace,validator_novalidatefn
GOLANGCI_LINT := GOGC=400 nice go run -exec 'env $(ALIKE)' github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## Run everything for some seconds on a temporary file; needs only Go
	@.ci/build bin/carillon && bin/carillon demo

.PHONY: run
run: ## Run the service on 127.0.0.1:8080 with an SQLite file in this folder
	@.ci/build bin/carillon && bin/carillon serve

.PHONY: build
build: ## Build the service, bin/carillon, and the bench, bin/carillon-bench
	@.ci/build bin/carillon
	@.ci/build bin/carillon-bench

# The version of the image and of its program.
VERSION ?= $(shell git describe --tags --always --dirty)

.PHONY: image
image: ## Build the container image carillon:VERSION, with the version from git
	docker build -f docker/Dockerfile --build-arg VERSION="$(VERSION)" -t "carillon:$(VERSION)" -t carillon:latest .

# A release has its tag: make release VERSION=v1.2.3. Without VERSION it is a snapshot, named by git.
TAGGED = $(if $(filter command environment,$(firstword $(origin VERSION))),-version=$(VERSION))

.PHONY: release
release: ## Make a release, or a snapshot, in dist: archives, packages, image, chart, components, checksums; needs no network
	cd deploy/release && go run . $(TAGGED) $(if $(PUSH),-push=$(PUSH)) $(if $(PLATFORMS),-platforms=$(PLATFORMS))

.PHONY: images
images: ## Make the container image for Linux on two processors, as an archive in dist; needs no container engine
	cd deploy/release && go run . -only=image $(TAGGED) $(if $(PUSH),-push=$(PUSH)) $(if $(PLATFORMS),-platforms=$(PLATFORMS))

.PHONY: test
test: ## Run every test; installs and starts the servers it needs by itself, on loopback
	.ci/in-memory .ci/with-services .ci/test

.PHONY: test-long
test-long: ## Run every test, and some minutes more: fuzzing, longer random histories, the comparison with other schedulers
	.ci/in-memory .ci/with-services .ci/test-long

.PHONY: released
released: ## Write docs/released anew at a release, to which later versions are held; see its README.md
	CARILLON_TEST_SERVICES="mongodb postgresql redis" CARILLON_TEST_RELEASED=1 .ci/with-services \
		go test -count=1 -tags services -run '^(TestReleasedSurface|TestPresentFormatIsReleased)$$' ./cmd/carillon
	git rev-parse HEAD >docs/released/previous

.PHONY: test-unit
test-unit: ## Run the tests that need only Go
	go test ./...
	cd client && go test ./...
	cd client/contract && go test ./...

# The store and the time of `make chaos`; SEED=0 takes a seed by the time.
STORE ?= sqlite
MINUTES ?= 2
SEED ?= 0

.PHONY: chaos
chaos: ## Kill, stop and cut off replicas on a real store, and check the guarantees; STORE=mongodb|postgres|redis|sqlite, MINUTES, SEED
	.ci/in-memory .ci/chaos $(STORE) $(MINUTES) $(SEED)

.PHONY: bench
bench: ## Measure speed and punctuality on all stores, in short; prints tables
	@.ci/with-services .ci/bench short

.PHONY: bench-full
bench-full: ## Measure all of it at full size, as for docs/benchmarks.md; takes two and a half hours
	@.ci/with-services .ci/bench full

.PHONY: profile
profile: ## Show who uses the processors while a mode of the bench runs, in Markdown: MODE="drain --callback=http", STORE as above
	@.ci/profile $(STORE) $(MODE)

.PHONY: test-mongodb
test-mongodb: ## Test the MongoDB store, and replicas on it, at CARILLON_TEST_MONGODB_URI, or with the mongod on PATH
	.ci/with-mongod bash -c 'CARILLON_TEST_MONGODB_SUITE=1 go test -race -timeout 15m -tags "services $$CARILLON_TEST_MONGODB_TAGS" ./store/mongodb && \
		.ci/with-services go test -race -timeout 15m -tags services -run "/^mongodb$$" ./cmd/carillon'

.PHONY: bench-mongodb
bench-mongodb: ## Measure all of it on MongoDB, found in the same way; takes three quarters of an hour
	@.ci/with-mongod .ci/with-services .ci/bench mongodb

# Sizes for `make bench-peers`, for about ten minutes. docs/benchmarks.md has those for published results.
COUNT ?= 10000
RATE ?= 500
DURATION ?= 5s
ROUNDS ?= 1
PEERS_FLAGS ?=

.PHONY: bench-peers
bench-peers: build ## Compare with River, asynq and plain loops on the same servers, in speed and conduct; COUNT, RATE, DURATION, ROUNDS
	cd cmd/carillon-bench/peers && go build -o $(CURDIR)/bin/peers .
	.ci/with-services bash -c 'exec bin/peers --postgres "$$CARILLON_TEST_POSTGRES_URL" --redis "$$CARILLON_TEST_REDIS_URL" \
		--carillon bin/carillon-bench --service bin/carillon --conduct --count $(COUNT) --rate $(RATE) --duration $(DURATION) --rounds $(ROUNDS) $(PEERS_FLAGS)'

.PHONY: lint
lint: ## Check style, mistakes and the direction of imports
	$(GOLANGCI_LINT) run --allow-parallel-runners --build-tags services,long,$(BUILD_TAGS)
	cd store/mongodb/testserver && nice go vet ./...
	cd cmd/carillon-bench/peers && nice env $(ALIKE) go vet -tags services,$(BUILD_TAGS) ./...
	cd ui/build && nice go vet ./...
	cd ui/browser && nice go vet -tags long ./...
	cd client && $(GOLANGCI_LINT) run --allow-parallel-runners && go mod tidy -diff
	cd client/contract && nice env $(ALIKE) go vet -tags $(BUILD_TAGS) ./...
	go mod tidy -diff

.PHONY: lint-spec
lint-spec: build ## Check the API's specification with linters and generators of clients; installs Node.js if it is missing
	nice .ci/spec bin/carillon

.PHONY: ui
ui: ## Build the web page's files, ui/dist, from ui/src; installs Node.js, for its packages and their types, if it is missing
	@.ci/ui write

.PHONY: pictures
pictures: ## Take the pictures of the web page for the documents, docs/ui, from the demo; needs Chromium, installed as by make test
	CARILLON_TEST_SERVICES=chromium .ci/with-services bash -c 'cd ui/browser && CARILLON_SCREENSHOTS=$(CURDIR)/docs/ui go test -count=1 -run TestScreenshots .'

.PHONY: lint-ui
lint-ui: ## Check that ui/dist is built from ui/src, and that its types are those of the specification
	@nice .ci/ui check

.PHONY: vulnerabilities
vulnerabilities: ## Look for known vulnerabilities in the code that the programs call; needs vuln.go.dev, or a copy of it in CARILLON_VULNDB
	@.ci/vulnerabilities

.PHONY: sbom
sbom: build ## Write the list of the service's components, bin/carillon.cdx.json, in the form of CycloneDX
	@nice .ci/sbom bin/carillon

.PHONY: clean
clean: ## Remove the built files
	rm -rf bin dist
