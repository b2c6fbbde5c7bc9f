package handlers_test

import (
	"context"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/callbacks/rabbitmq"
	"github.com/carillon-scheduler/carillon/callbacks/webhook"
	"github.com/carillon-scheduler/carillon/handlers"
	"github.com/carillon-scheduler/carillon/openapi"
)

func TestSpecificationIsValid(t *testing.T) {
	spec := specification(t)
	if err := spec.Validate(context.Background()); err != nil {
		t.Error(err)
	}
	if spec.OpenAPI != "3.1.0" {
		t.Errorf("it is OpenAPI %s", spec.OpenAPI)
	}
}

func TestRoutesAreTheSpecifiedOnes(t *testing.T) {
	var specified []string
	for path, item := range specification(t).Paths.Map() {
		for method := range item.Operations() {
			specified = append(specified, method+" "+regexp.MustCompile(`\{(\w+)\}`).ReplaceAllString(path, ":$1"))
		}
	}
	routes := handlers.Routes(handlers.Config{})
	slices.Sort(specified)
	slices.Sort(routes)
	if !slices.Equal(specified, routes) {
		t.Errorf("the specification has\n%q\nthe router has\n%q", specified, routes)
	}
}

func TestSpecificationIsServed(t *testing.T) {
	got := newAPI(t).call("GET", "/openapi.yaml", "").want(200)
	if string(got.body) != string(openapi.YAML) || got.header.Get("Content-Type") != "application/yaml" {
		t.Errorf("served as %s:\n%s", got.header.Get("Content-Type"), got.body)
	}
}

// TestSpecifiedExamplesWork sends the examples to the API with the real senders.
func TestSpecifiedExamplesWork(t *testing.T) {
	queues, err := rabbitmq.New(rabbitmq.Options{URL: "amqp://127.0.0.1:1/"}) // it need not connect to check
	if err != nil {
		t.Fatal(err)
	}
	hooks := webhook.New(webhook.Options{})
	t.Cleanup(func() { _, _ = queues.Close(), hooks.Close() })
	a := newAPI(t, func(c *handlers.Config) { c.Callbacks = callbacks.NewRegistry(hooks, queues) })
	a.advance(-4 * 365 * 24 * time.Hour) // to before the instants of the examples

	for name, example := range a.spec.Components.Examples {
		t.Run(name, func(*testing.T) {
			a.call("POST", "/v1/jobs", encode(example.Value.Value)).want(201)
		})
	}
	for name, example := range a.spec.Paths.Value("/v1/preview").Post.RequestBody.Value.Content[asArray].Examples {
		t.Run("preview "+name, func(*testing.T) {
			a.call("POST", "/v1/preview", encode(example.Value.Value)).want(200)
		})
	}
	for name, example := range a.spec.Paths.Value("/v1/jobs/{key}").Patch.RequestBody.Value.Content["application/merge-patch+json"].Examples {
		t.Run("patch "+name, func(*testing.T) {
			a.call("PUT", "/v1/jobs/digest", encode(a.spec.Components.Examples["CrontabJob"].Value.Value))
			tag := a.call("GET", "/v1/jobs/digest", "").header.Get("ETag")
			if got := a.patch("digest", encode(example.Value.Value)).want(200).header.Get("ETag"); got == tag {
				t.Error("it changed nothing")
			}
		})
	}
	content := a.spec.Paths.Value("/v1/jobs/batch").Post.RequestBody.Value.Content
	for media, text := range map[string]string{
		asArray: encode(content[asArray].Example), asLines: content[asLines].Example.(string),
	} {
		got := a.call("POST", "/v1/jobs/batch", text, "Content-Type: "+media).want(200)
		for _, r := range a.results(media, got.body) {
			if r.Status >= 300 {
				t.Errorf("%s: %+v", media, r)
			}
		}
	}
}

// specification loads the served specification.
func specification(t testing.TB) *openapi3.T {
	t.Helper()
	loader := openapi3.NewLoader()
	spec, err := loader.LoadFromData(openapi.YAML)
	if err != nil {
		t.Fatal(err)
	}
	return spec
}
