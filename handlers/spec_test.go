package handlers_test

import (
	"bytes"
	"context"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/callbacks/kafka"
	"github.com/carillon-scheduler/carillon/callbacks/rabbitmq"
	"github.com/carillon-scheduler/carillon/callbacks/webhook"
	"github.com/carillon-scheduler/carillon/handlers"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/openapi"
)

func TestSpecificationIsValid(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector sees the same in other tests")
	}
	t.Parallel()
	spec := specification(t)
	if err := spec.Validate(context.Background()); err != nil {
		t.Error(err)
	}
	if spec.OpenAPI != "3.1.0" {
		t.Errorf("it is OpenAPI %s", spec.OpenAPI)
	}
}

func TestRoutesAreTheSpecifiedOnes(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector sees the same in other tests")
	}
	t.Parallel()
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

// TestJobSchemaIsServed for editors, which ask again and again.
func TestJobSchemaIsServed(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	got := a.call("GET", "/schemas/job.json", "").want(200)
	if !bytes.Equal(got.body, openapi.JobSchema()) {
		t.Errorf("it is served as %s", got.body)
	}
	a.call("GET", "/schemas/job.json", "", "If-None-Match: "+got.header.Get("ETag")).want(304)
}

// TestSpecificationIsServed: both forms have the same content, and are sent to clients that do not have them yet.
func TestSpecificationIsServed(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector sees the same in other tests")
	}
	t.Parallel()
	a := newAPI(t)
	want, err := specification(t).MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	tags := map[string]bool{}
	for path, media := range map[string]string{"/openapi.yaml": "application/yaml", "/openapi.json": "application/json"} {
		got := a.call("GET", path, "").want(200)
		if got.header.Get("Content-Type") != media || media == "application/yaml" && string(got.body) != string(openapi.YAML) ||
			media == "application/json" && !json.Valid(got.body) {
			t.Errorf("%s is served as %s:\n%s", path, got.header.Get("Content-Type"), got.body)
		}
		served, err := openapi3.NewLoader().LoadFromData(got.body)
		if err != nil {
			t.Fatal(err)
		}
		if says, err := served.MarshalJSON(); err != nil || string(says) != string(want) {
			t.Errorf("%s says something else: %v", path, err)
		}
		tag := got.header.Get("ETag")
		tags[tag] = true
		for known, status := range map[string]int{tag: 304, "W/" + tag: 304, `"x", ` + tag: 304, "*": 304, `"x"`: 200} {
			a.call("GET", path, "", "If-None-Match: "+known).want(status)
		}
	}
	if len(tags) != 2 {
		t.Errorf("the two forms have the tags %v", tags)
	}
}

// TestSpecifiedExamplesWork sends the examples to the API with the real senders.
func TestSpecifiedExamplesWork(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector sees the same in other tests")
	}
	t.Parallel()
	queues, err := rabbitmq.New(rabbitmq.Options{URL: "amqp://127.0.0.1:1/"}) // it need not connect to check
	if err != nil {
		t.Fatal(err)
	}
	hooks := webhook.New(webhook.Options{})
	t.Cleanup(func() { _, _ = queues.Close(), hooks.Close() })
	a := newAPI(t, func(c *handlers.Config) { c.Callbacks = callbacks.NewRegistry(hooks, queues) })
	a.spec = specification(t)
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
			tag := a.call("GET", "/v1/jobs/digest", "").versionTag()
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

// TestExamplesThatAnyServerTakes: the first one that is shown, and all others that call by HTTP, are taken by a server
// that has no other senders, whatever its clock shows.
func TestExamplesThatAnyServerTakes(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector sees the same in other tests")
	}
	t.Parallel()
	a := newAPI(t, func(c *handlers.Config) { c.Callbacks = callbacks.NewRegistry(webhook.New(webhook.Options{})) })
	a.spec = specification(t)
	first := regexp.MustCompile(`(?s)operationId: (?:postJob|putJob)\n.*?/components/examples/(\w+)`).FindAllSubmatch(openapi.YAML, -1)
	if len(first) != 2 {
		t.Fatalf("the first examples are %q", first)
	}
	shown := map[string]bool{}
	for _, match := range first {
		shown[string(match[1])] = true
	}
	for _, years := range []int{-10, 0, 10} {
		a.advance(time.Duration(years) * 365 * 24 * time.Hour)
		for name, example := range a.spec.Components.Examples {
			if submitted := encode(example.Value.Value); shown[name] || strings.Contains(submitted, `"type":"http"`) {
				if got := a.call("POST", "/v1/jobs", submitted); got.status >= 300 {
					t.Errorf("in %d, %s is answered with %d: %s", a.clock().Year(), name, got.status, got.body)
				}
			}
		}
	}
}

// TestCallbackDataAsSpecified: a sender accepts exactly the data that the specification accepts for its type.
func TestCallbackDataAsSpecified(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector sees the same in other tests")
	}
	t.Parallel()
	queues, err := rabbitmq.New(rabbitmq.Options{URL: "amqp://127.0.0.1:1/"})
	if err != nil {
		t.Fatal(err)
	}
	topics, err := kafka.New(kafka.Options{Brokers: []string{"127.0.0.1:1"}})
	if err != nil {
		t.Fatal(err)
	}
	registry := callbacks.NewRegistry(webhook.New(webhook.Options{}), queues, topics)
	t.Cleanup(func() { _, _ = queues.Close(), topics.Close() })
	a := &api{TB: t, spec: specification(t)}
	for callback, taken := range map[string]bool{
		`{"type":"http","data":{"url":"https://example.com"}}`:                                                          true,
		`{"type":"http","data":{"url":"http://example.com/x?y=z","method":"PUT","headers":{"X-A":"b"},"payload":null}}`: true,
		`{"type":"http","data":{"url":"https://example.com","payload":[1,"a",{}]},"envelope":"cloudevents-binary"}`:     true,
		`{"type":"http","data":{}}`:                                                false,
		`{"type":"http","data":{"url":""}}`:                                        false,
		`{"type":"http","data":{"url":"https://example.com","method":"GET"}}`:      false,
		`{"type":"http","data":{"url":"https://example.com","headers":{"X-A":1}}}`: false,
		`{"type":"http","data":{"url":"https://example.com","queue":"q"}}`:         false,
		`{"type":"http","data":"https://example.com"}`:                             false,
		`{"type":"rabbitmq","data":{"queue":"q"}}`:                                 true,
		`{"type":"rabbitmq","data":{"exchange":"e","routingKey":"k","persistent":false,"headers":{"a":1,"b":1.5,"c":true,"d":"x"}}}`: true,
		`{"type":"rabbitmq","data":{"queue":"q","headers":{"a":[1]}}}`:                                                               false,
		`{"type":"rabbitmq","data":{"queue":"q","persistent":"yes"}}`:                                                                false,
		`{"type":"rabbitmq","data":{"url":"https://example.com"}}`:                                                                   false,
		`{"type":"kafka","data":{"topic":"t"}}`:                                                                                      true,
		`{"type":"kafka","data":{"topic":"t","key":"","partition":3,"headers":{"a":"b"},"payload":0}}`:                               true,
		`{"type":"kafka","data":{"topic":"t","partition":-1}}`:                                                                       false,
		`{"type":"kafka","data":{"topic":"t t"}}`:                                                                                    false,
		`{"type":"kafka","data":{}}`:                                                                                                 false,
		`{"type":"pigeon","data":{"loft":7}}`:                                                                                        false,
	} {
		draft, err := job.Decode([]byte(`{"key":"k","delay":"1s","callback":` + callback + `}`))
		if err == nil {
			var j job.Job
			if j, err = draft.Job(job.DefaultTenant, job.Limits{Instants: 1, Payload: 1000}); err == nil {
				err = registry.Validate(j.Target())
			}
		}
		if (err == nil) != taken {
			t.Errorf("%s: it is taken: %t, want %t: %v", callback, err == nil, taken, err)
		}
		err = a.schemaConforms(a.spec.Components.Schemas["Callback"], []byte(callback))
		if (err == nil) != taken {
			t.Errorf("%s: the specification takes it: %t, want %t: %v", callback, err == nil, taken, err)
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

// TestEachAnswerHasARequestID: each answer has one, and each is specified to have one.
func TestEachAnswerHasARequestID(t *testing.T) {
	t.Parallel()
	for path, item := range specification(t).Paths.Map() {
		for method, operation := range item.Operations() {
			for status, response := range operation.Responses.Map() {
				if response.Value.Headers["X-Request-Id"] == nil {
					t.Errorf("%s %s: the answer %s has no X-Request-Id", method, path, status)
				}
			}
		}
	}
}
