package dispatcher_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/dispatcher"
	"github.com/carillon-scheduler/carillon/handlers"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store/memory"
)

// greeter is a sender: jobs whose callback has the type "greet" call this program.
type greeter struct{ greeted chan string }

type greeting struct {
	Name string `json:"name" validate:"required"`
}

func (greeter) Type() string               { return "greet" }
func (greeter) Destination([]byte) string  { return "here" }
func (greeter) Validate(data []byte) error { _, err := job.Parse[greeting](data); return err }
func (g greeter) Send(_ context.Context, d callbacks.Delivery) error {
	data, err := job.Parse[greeting](d.Data)
	if err != nil {
		return callbacks.Permanent(err) // no later attempt can succeed
	}
	g.greeted <- fmt.Sprintf("Good morning, %s! Attempt %d.", data.Name, d.Attempt)
	return nil
}

// One replica in a program of your own: a store, the dispatcher, and the API.
func Example() {
	if err := greet(context.Background()); err != nil {
		log.Fatal(err)
	}
	// Output:
	// 201 Created
	// Good morning, Ada! Attempt 1.
}

func greet(ctx context.Context) error {
	jobs, err := memory.Open(ctx, "memory:") // sqlite.Open, mongodb.Open and so on outlive the process
	if err != nil {
		return err
	}
	defer jobs.Close()

	// The dispatcher fires due occurrences until its context ends.
	g := greeter{greeted: make(chan string, 1)}
	config := dispatcher.Defaults
	config.Store, config.Callbacks = jobs, callbacks.NewRegistry(g)
	d, err := dispatcher.New(config)
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	stopped := make(chan error, 1)
	go func() { stopped <- d.Run(running) }()

	// The API is an http.Handler.
	server := httptest.NewServer(handlers.New(handlers.Config{
		Store: jobs, Inspector: jobs, Records: jobs, Callbacks: config.Callbacks,
		Wake: d.Wake, WakeExpander: d.WakeExpander, Expansion: config.Expansion(), Retain: config.Retain,
		Limits: job.Limits{Instants: 1000, Payload: 64 << 10}, MaxBody: 1 << 20,
	}))
	defer server.Close()

	answer, err := http.Post(server.URL+"/v1/jobs", "application/json", strings.NewReader(
		`{"key": "morning", "delay": "100ms", "callback": {"type": "greet", "data": {"name": "Ada"}}}`))
	if err == nil {
		defer answer.Body.Close()
		fmt.Println(answer.Status)
		fmt.Println(<-g.greeted)
	}

	stop() // callbacks under way end, and their outcomes are written
	return errors.Join(err, <-stopped)
}
