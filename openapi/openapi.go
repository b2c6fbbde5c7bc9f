// Package openapi holds the specification of the HTTP API. It is the API's source of truth: the handlers are tested
// against it, and every replica serves it at /openapi.yaml.
package openapi

import _ "embed"

// YAML is the specification, OpenAPI 3.1.
//
//go:embed openapi.yaml
var YAML []byte
