package handlers_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

// conforms checks an exchange against the specification: the answer always, the request if it was accepted.
func (a *api) conforms(request *http.Request, body string, got answer) {
	a.Helper()
	path, parameters := a.specPath(request.URL)
	operation := (*openapi3.Operation)(nil)
	if path != "" {
		operation = a.spec.Paths.Value(path).GetOperation(request.Method)
	}
	if operation == nil { // 404, 405, HEAD and OPTIONS
		if got.status >= 400 && request.Method != http.MethodHead {
			a.isProblem(got)
		}
		return
	}
	if got.status >= 400 {
		a.isProblem(got)
	}
	input := &openapi3filter.RequestValidationInput{
		Request:     request.Clone(context.Background()),
		PathParams:  parameters,
		QueryParams: request.URL.Query(),
		Route: &routers.Route{
			Spec: a.spec, Path: path, PathItem: a.spec.Paths.Value(path), Method: request.Method, Operation: operation,
		},
		// openapi3filter compiles a schema again for each body, so bodies are checked here.
		Options: &openapi3filter.Options{
			IncludeResponseStatus: true, ExcludeRequestBody: true, ExcludeResponseBody: true,
			AuthenticationFunc: openapi3filter.NoopAuthenticationFunc,
		},
	}
	input.Request.Body = http.NoBody
	err := openapi3filter.ValidateRequest(context.Background(), input)
	// A batch that is broken in part is accepted in part. Without a Content-Type nothing is specified but that it may be so.
	broken := path == "/v1/jobs/batch" && (body == "" || bytes.Contains(got.body, []byte(`"title":`)))
	if err == nil && !broken && request.Header.Get("Content-Type") != "" {
		err = a.bodyConforms(operation.RequestBody, request.Header.Get("Content-Type"), body)
	}
	if err != nil && got.status < 400 {
		a.Errorf("%s %s was answered with %d, but the specification refuses it: %v", request.Method, request.URL, got.status, err)
	}
	output := &openapi3filter.ResponseValidationInput{
		RequestValidationInput: input, Status: got.status, Header: got.header, Options: input.Options,
	}
	err = openapi3filter.ValidateResponse(context.Background(), output)
	if r := operation.Responses.Status(got.status); err == nil && len(r.Value.Content) > 0 && request.Method != http.MethodHead {
		err = a.contentConforms(r.Value.Content, got.header.Get("Content-Type"), string(got.body))
	}
	if err != nil {
		a.Errorf("%s %s: the answer is not as specified: %v\n%s", request.Method, request.URL, err, got.body)
	}
}

// bodyConforms checks a request's body.
func (a *api) bodyConforms(specified *openapi3.RequestBodyRef, mediaType, body string) error {
	switch {
	case specified == nil && body != "":
		return errors.New("no body is specified")
	case specified == nil:
		return nil
	case body == "" && specified.Value.Required:
		return errors.New("a body is required")
	case body == "":
		return nil
	}
	return a.contentConforms(specified.Value.Content, mediaType, body)
}

// contentConforms checks a body of a media type. Of those that are not JSON, nothing but the type is specified.
func (a *api) contentConforms(specified openapi3.Content, mediaType, body string) error {
	content := specified.Get(mediaType)
	if content == nil {
		return fmt.Errorf("the media type %q is not specified", mediaType)
	}
	media, _, err := mime.ParseMediaType(mediaType)
	if err != nil || content.Schema == nil || media != asArray && !strings.HasSuffix(media, "+json") {
		return err
	}
	return a.schemaConforms(content.Schema, []byte(body))
}

// schemaConforms checks a document against a schema of the specification.
func (a *api) schemaConforms(schema *openapi3.SchemaRef, document []byte) error {
	a.Helper()
	compiled, err := schemas.compiled(a.spec, schema)
	if err != nil {
		a.Fatal(err)
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(document))
	if err != nil {
		return err
	}
	return compiled.Validate(v)
}

// schemas are compiled once for all tests: compiling one takes longer than most tests.
var schemas = schemaCache{components: map[*openapi3.T]any{}, schemas: map[*openapi3.Schema]*jsonschema.Schema{}}

type schemaCache struct {
	lock       sync.Mutex
	components map[*openapi3.T]any
	schemas    map[*openapi3.Schema]*jsonschema.Schema
}

// compiled compiles a schema as a document of its own, beside the components of its specification.
func (c *schemaCache) compiled(spec *openapi3.T, schema *openapi3.SchemaRef) (*jsonschema.Schema, error) {
	c.lock.Lock()
	defer c.lock.Unlock()
	if found := c.schemas[schema.Value]; found != nil {
		return found, nil
	}
	if c.components[spec] == nil {
		components, err := decoded(spec.Components)
		if err != nil {
			return nil, err
		}
		c.components[spec] = components
	}
	itself, err := decoded(schema)
	if err != nil {
		return nil, err
	}
	compiler := jsonschema.NewCompiler()
	compiler.AssertFormat()
	const name = "https://carillon.test/schema"
	err = compiler.AddResource(name, map[string]any{"allOf": []any{itself}, "components": c.components[spec]})
	if err != nil {
		return nil, err
	}
	c.schemas[schema.Value], err = compiler.Compile(name)
	return c.schemas[schema.Value], err
}

// decoded returns a value as JSON has it.
func decoded(v any) (any, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return jsonschema.UnmarshalJSON(bytes.NewReader(text))
}

// isProblem checks that an answer is a problem document whose status is the answer's.
func (a *api) isProblem(got answer) {
	a.Helper()
	if media := got.header.Get("Content-Type"); media != "application/problem+json" {
		a.Fatalf("status %d has Content-Type %q: %s", got.status, media, got.body)
	}
	a.matches(a.spec.Components.Schemas["Problem"], got.body)
	if p := got.problem(); p.Status != got.status {
		a.Errorf("status %d has a problem with status %d", got.status, p.Status)
	}
}

// matches checks a document against a schema of the specification.
func (a *api) matches(schema *openapi3.SchemaRef, document []byte) {
	a.Helper()
	if err := a.schemaConforms(schema, document); err != nil {
		a.Errorf("not as specified (%s): %v: %s", schema.Ref, err, document)
	}
}

// specPath finds the specification's path for a URL, static segments before parameters.
func (a *api) specPath(u *url.URL) (path string, parameters map[string]string) {
	segments := strings.Split(u.EscapedPath(), "/")
	for _, candidate := range slices.Backward(a.spec.Paths.InMatchingOrder()) {
		found, ok := map[string]string{}, true
		parts := strings.Split(candidate, "/")
		if len(parts) != len(segments) {
			continue
		}
		for i, part := range parts {
			switch {
			case strings.HasPrefix(part, "{") && segments[i] != "":
				value, err := url.PathUnescape(segments[i])
				if err != nil {
					a.Fatal(err)
				}
				found[strings.Trim(part, "{}")] = value
			case part != segments[i]:
				ok = false
			}
		}
		if ok && (path == "" || len(found) < len(parameters)) {
			path, parameters = candidate, found
		}
	}
	return path, parameters
}
