package openapi_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"slices"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/carillon-scheduler/carillon/openapi"
)

var update = flag.Bool("update", false, "write job.schema.json")

// TestJobSchema: the schema in the repository matches the specification, accepts jobs, and refuses everything else.
func TestJobSchema(t *testing.T) {
	const name = "job.schema.json"
	if *update {
		if err := os.WriteFile(name, openapi.JobSchema(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	kept, err := os.ReadFile(name)
	if err != nil || !bytes.Equal(kept, openapi.JobSchema()) {
		t.Errorf("%s is not that of openapi.yaml: run go test ./openapi -update", name)
	}
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(openapi.JobSchema()))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("job.json", document); err != nil {
		t.Fatal(err)
	}
	schema, err := c.Compile("job.json")
	if err != nil {
		t.Fatal(err)
	}
	var spec struct {
		Components struct {
			Examples map[string]struct{ Value any }
		}
	}
	if err := json.Unmarshal(openapi.JSON(), &spec); err != nil || len(spec.Components.Examples) == 0 {
		t.Fatal("the specification has no examples", err)
	}
	for name, example := range spec.Components.Examples {
		if err := schema.Validate(example.Value); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for text, valid := range map[string]bool{
		`[{"key":"a","crontab":"@daily","callback":{"type":"http","data":{"url":"https://example.com"}}}]`:             true,
		`{"$schema":"x","key":"a","crontab":"@daily","callback":{"type":"http","data":{"url":"https://example.com"}}}`: true,
		`{"key":"a","crontab":"@daily","callback":{"type":"http","data":{"ulr":"https://example.com"}}}`:               false,
		`{"key":"a","cronttab":"@daily","callback":{"type":"http","data":{"url":"https://example.com"}}}`:              false,
		`{"key":"a","crontab":"@daily"}`: false,
		`"a"`:                            false,
	} {
		value, err := jsonschema.UnmarshalJSON(bytes.NewReader([]byte(text)))
		if err != nil {
			t.Fatal(err)
		}
		if err := schema.Validate(value); (err == nil) != valid {
			t.Errorf("%s: valid is %t, want %t: %v", text, err == nil, valid, err)
		}
	}
	if !slices.Contains(openapi.JobFields(), "crontab") || slices.Contains(openapi.JobFields(), "state") {
		t.Errorf("the fields are %v", openapi.JobFields())
	}
}
