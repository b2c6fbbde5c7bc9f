package released_test

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/carillon-scheduler/carillon/cmd/internal/released"
)

const specification = `{
	"paths": {"/v1/things/{key}": {
		"parameters": [{"$ref": "#/components/parameters/Key"}],
		"put": {
			"operationId": "putThing", "x-permission": "submit",
			"requestBody": {"required": true, "content": {"application/json": {"schema": {"$ref": "#/components/schemas/NewThing"}}}},
			"responses": {
				"200": {"headers": {"ETag": {"schema": {"type": "string"}}}, "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Thing"}}}},
				"404": {"description": "There is none."}
			}
		}
	}},
	"components": {
		"parameters": {"Key": {"name": "key", "in": "path", "required": true, "schema": {"type": "string", "maxLength": 9}}},
		"schemas": {
			"NewThing": {"type": "object", "additionalProperties": false, "required": ["size"], "properties": {
				"size": {"type": "integer", "minimum": 1, "maximum": 5},
				"colour": {"type": "string", "enum": ["red", "blue"], "default": "red"},
				"parts": {"type": "array", "items": {"$ref": "#/components/schemas/NewThing"}}
			}},
			"Thing": {"type": "object", "required": ["size", "made"], "properties": {
				"size": {"type": "integer"},
				"made": {"type": ["string", "null"], "format": "date-time"}
			}}
		}
	}
}`

func surface(t *testing.T, text string) released.Surface {
	t.Helper()
	s := make(released.Surface)
	if err := s.AddSpecification([]byte(text)); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestSpecification: a change of a specification is reported if it breaks something for users, and only then. Each case
// replaces a text of the specification.
func TestSpecification(t *testing.T) {
	before := surface(t, specification)
	for _, c := range []struct{ name, old, replacement, want string }{
		{"nothing", "", "", ""},
		{"an operation goes", `"put": {`, `"post": {`, "PUT /v1/things/{key} is gone"},
		{"an operation comes", `"put": {`, `"get": {"responses": {}}, "put": {`, ""},
		{"a parameter is required", `"parameters": [`, `"parameters": [{"name": "q", "in": "query", "required": true, "schema": {}}, `,
			"PUT /v1/things/{key} query q is required of requests"},
		{"a parameter comes", `"parameters": [`, `"parameters": [{"name": "q", "in": "query", "schema": {}}, `, ""},
		{"a parameter is tighter", `"maxLength": 9`, `"maxLength": 8`, "path key has the bound maxLength of 8, and had 9"},
		{"a parameter is wider", `"maxLength": 9`, `"maxLength": 10`, ""},
		{"a lower bound rises", `"minimum": 1`, `"minimum": 2`, "schema NewThing.size has the bound minimum of 2"},
		{"a lower bound comes", `{"type": "string", "enum"`, `{"minLength": 2, "type": "string", "enum"`, "NewThing.colour has the new bound minLength"},
		{"another permission", `"submit"`, `"admin"`, `PUT /v1/things/{key} has the x-permission "admin", and had "submit"`},
		{"a field of requests goes", `"colour": {"type": "string", "enum": ["red", "blue"], "default": "red"},`, "", "schema NewThing.colour is gone"},
		{"a field of requests comes", `"colour"`, `"weight": {"type": "integer"}, "colour"`, ""},
		{"a required field comes", `"required": ["size"], "properties": {`, `"required": ["size", "weight"], "properties": {"weight": {"type": "integer"},`,
			"schema NewThing.weight is required of requests, which"},
		{"a field is required", `["size"]`, `["size", "colour"]`, "schema NewThing.colour is required of requests, and was not"},
		{"a field is required no longer", `"required": ["size"], `, "", ""},
		{"a type changes", `"size": {"type": "integer", "minimum"`, `"size": {"type": "string", "minimum"`, "schema NewThing.size has the type string, and had integer"},
		{"a type more of requests", `"size": {"type": "integer", "minimum"`, `"size": {"type": ["integer", "string"], "minimum"`, ""},
		{"a type more of answers", `"size": {"type": "integer"}`, `"size": {"type": ["integer", "string"]}`, "schema Thing.size has the type"},
		{"a type less of answers", `["string", "null"]`, `"string"`, ""},
		{"a value goes", `["red", "blue"]`, `["red"]`, "schema NewThing.colour can no longer be blue"},
		{"a value comes", `["red", "blue"]`, `["red", "blue", "green"]`, ""},
		{"a default changes", `"default": "red"`, `"default": "blue"`, `schema NewThing.colour has the default "blue", and had "red"`},
		{"a field of answers goes", `"size": {"type": "integer"},`, "", "schema Thing.size is gone"},
		{"a field of answers may be missing", `["size", "made"]`, `["made"]`, "schema Thing.size may be missing"},
		{"a field of answers is always there", `"required": ["size", "made"], `, `"required": ["size", "made", "more"], `, ""},
		{"another format", `"date-time"`, `"date"`, `schema Thing.made has the format "date"`},
		{"a status goes", `"404"`, `"410"`, "PUT /v1/things/{key} 404 is gone"},
		{"a header goes", `"ETag"`, `"Tag"`, "header ETag is gone"},
		{"a schema has another name", `#/components/schemas/Thing"`, `#/components/schemas/NewThing"`, "200 body application/json can no longer be Thing"},
	} {
		t.Run(c.name, func(t *testing.T) {
			text := strings.Replace(specification, c.old, c.replacement, 1)
			if c.old != "" && text == specification {
				t.Fatal("the specification does not have the text")
			}
			found := told(released.Broken(before, surface(t, text)))
			if c.want == "" && found != "" || !strings.Contains(found, c.want) {
				t.Errorf("it tells %q, want %q", found, c.want)
			}
		})
	}
}

func told(broken map[string][]string) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(broken)) {
		b.WriteString(name + " " + strings.Join(broken[name], "; ") + "\n")
	}
	return b.String()
}

// TestWhatIsBoth: a schema that users send and receive is held to both.
func TestWhatIsBoth(t *testing.T) {
	both := strings.Replace(specification, `#/components/schemas/Thing"`, `#/components/schemas/NewThing"`, 1)
	for _, c := range [][2]string{{`["size"]`, `["size", "colour"]`}, {`"required": ["size"], `, ``}} {
		old, replacement := c[0], c[1]
		if found := told(released.Broken(surface(t, both), surface(t, strings.Replace(both, old, replacement, 1)))); found == "" {
			t.Errorf("%s instead of %s breaks nothing", replacement, old)
		}
	}
}

func TestReferenceToNothing(t *testing.T) {
	s := make(released.Surface)
	if err := s.AddSpecification([]byte(strings.Replace(specification, `"Key": {`, `"Other": {`, 1))); err == nil || !strings.Contains(err.Error(), "parameters/Key") {
		t.Errorf("%v", err)
	}
}

// TestForm: a written surface is read back unchanged, and has a line for each item.
func TestForm(t *testing.T) {
	s := surface(t, specification)
	text := s.Format()
	read, err := released.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	if found := told(released.Broken(s, read)) + told(released.Broken(read, s)); found != "" || len(read) != len(s) {
		t.Errorf("it is read as something else: %s", found)
	}
	if lines := strings.Count(string(text), "\n"); lines != len(s)+2 || !json.Valid(text) {
		t.Errorf("%d items have %d lines", len(s), lines)
	}
	if _, err := released.Parse([]byte(`{"option x": {"requierd": true}}`)); err == nil {
		t.Error("an unknown field is read")
	}
}
