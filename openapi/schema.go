package openapi

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"sync"
)

// JobSchema returns the JSON Schema (2020-12) of a file of jobs: a job as it is submitted, or a list of jobs. It is
// generated from the specification, and served at /schemas/job.json. Callers must not change the bytes.
var JobSchema = sync.OnceValue(func() []byte {
	var spec struct {
		Components struct{ Schemas map[string]any }
	}
	if err := json.Unmarshal(JSON(), &spec); err != nil {
		panic(err) // can't happen: a test reads the document
	}
	defs := make(map[string]any)
	collect("NewJob", spec.Components.Schemas, defs)
	// A JSON file may name its schema in this member.
	defs["NewJob"].(map[string]any)["properties"].(map[string]any)["$schema"] = map[string]any{"type": "string"}
	one := map[string]any{"$ref": "#/$defs/NewJob"}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(map[string]any{
		"$schema":     "https://json-schema.org/draft/2020-12/schema",
		"title":       "Jobs of Carillon",
		"description": "A file for carillon apply: a job, or a list of jobs.",
		"oneOf":       []any{one, map[string]any{"type": "array", "items": one}},
		"$defs":       defs,
	})
	if err != nil {
		panic(err) // can't happen: it was decoded
	}
	return b.Bytes()
})

// JobFields returns the names of the fields of a job as it is submitted, in their order.
var JobFields = sync.OnceValue(func() []string {
	var schema struct {
		Defs struct {
			NewJob struct{ Properties map[string]any }
		} `json:"$defs"`
	}
	if err := json.Unmarshal(JobSchema(), &schema); err != nil {
		panic(err) // can't happen
	}
	return slices.Sorted(maps.Keys(schema.Defs.NewJob.Properties))
})

// collect copies the schema of that name, and the schemas that it refers to.
func collect(name string, from, to map[string]any) {
	if _, ok := to[name]; ok {
		return
	}
	to[name] = nil // it may refer to itself
	to[name] = local(from[name], from, to)
}

// local returns a part of a schema with references into the schema's own document.
func local(part any, from, to map[string]any) any {
	switch part := part.(type) {
	case map[string]any:
		out := make(map[string]any)
		for name, v := range part {
			ref, isRef := v.(string)
			switch {
			case name == "discriminator": // only OpenAPI has it; each schema names its type too
			case name == "$ref" && isRef:
				other := strings.TrimPrefix(ref, "#/components/schemas/")
				collect(other, from, to)
				out[name] = "#/$defs/" + other
			default:
				out[name] = local(v, from, to)
			}
		}
		return out
	case []any:
		out := make([]any, len(part))
		for i, v := range part {
			out[i] = local(v, from, to)
		}
		return out
	default:
		return part
	}
}
