// What a client in Go does with the code that oapi-codegen makes. It is a module of its own, so that neither this code nor what
// npm puts here is a part of Carillon's.
module github.com/carillon-scheduler/carillon/openapi/clients

go 1.26.0

require (
	github.com/oapi-codegen/runtime v1.8.0
	go.yaml.in/yaml/v3 v3.0.6
)

require (
	github.com/apapsch/go-jsonmerge/v2 v2.0.0 // indirect
	github.com/google/uuid v1.6.0 // indirect
)
