// Package openapi holds the specification of the HTTP API. It is the API's source of truth: the handlers are tested
// against it, and every replica serves it at /openapi.yaml and /openapi.json.
package openapi

import (
	_ "embed"
	"sync"

	"github.com/goccy/go-yaml"
)

// YAML is the specification, OpenAPI 3.1.
//
//go:embed openapi.yaml
var YAML []byte

// JSON returns the specification as JSON. The first call converts it. Callers must not change the bytes.
var JSON = sync.OnceValue(func() []byte {
	b, err := yaml.YAMLToJSON(YAML)
	if err != nil {
		panic(err) // can't happen: a test converts the document
	}
	return b
})
