// Embed runs Carillon inside another program, with a sender of its own: jobs whose callback has the type "greet" call a
// Go function of this program instead of a webhook or a broker. Run it with:
//
//	go run ./docs/examples/embed
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/dispatcher"
	"github.com/carillon-scheduler/carillon/handlers"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store/sqlite"
)

// greeting is the callback data of a job: {"name": "…"}.
type greeting struct {
	Name string `json:"name" validate:"required"`
}

// greeter is a callbacks.Sender. The error that Send returns decides the outcome; see callbacks.Sender.
type greeter struct {
	greeted chan string
}

func (*greeter) Type() string { return "greet" }

// Validate refuses bad data when the job is submitted.
func (*greeter) Validate(data []byte) error {
	_, err := job.Parse[greeting](data)
	return err
}

// Destination names the destination of a callback. If it is slow or down, the service throttles all its callbacks.
func (*greeter) Destination([]byte) string { return "terminal" }

func (g *greeter) Send(ctx context.Context, d callbacks.Delivery) error {
	data, err := job.Parse[greeting](d.Data)
	if err != nil {
		return callbacks.Permanent(err) // a retry would not help
	}
	select {
	case g.greeted <- fmt.Sprintf("Good morning, %s! It is %s.", data.Name, job.FormatTime(d.Timestamp)):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func main() {
	if err := run(context.Background(), os.Stdout.WriteString); err != nil {
		log.Fatal(err)
	}
}

// run schedules two greetings, prints them as they come, and stops.
func run(ctx context.Context, write func(string) (int, error)) (err error) {
	dir, err := os.MkdirTemp("", "carillon-embed-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	jobs, err := sqlite.Open(ctx, "sqlite:"+filepath.Join(dir, "jobs.db"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, jobs.Close()) }()

	greeter := &greeter{greeted: make(chan string)}
	config := dispatcher.Defaults
	config.Store, config.Callbacks = jobs, callbacks.NewRegistry(greeter)
	d, err := dispatcher.New(config)
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	stopped := make(chan error, 1)
	go func() { stopped <- d.Run(running) }()
	// At the end, the dispatcher waits for running callbacks and writes their outcomes.
	defer func() { stop(); err = errors.Join(err, <-stopped) }()

	// The API is an http.Handler. A program can serve it, or call it directly as here.
	api := handlers.New(handlers.Config{
		Store: jobs, Inspector: jobs, Records: jobs, Callbacks: config.Callbacks,
		Wake: d.Wake, WakeExpander: d.WakeExpander, Expansion: config.Expansion(),
		Limits: job.Limits{Instants: 1000, Payload: 1 << 16}, MaxBody: 1 << 20, Retain: config.Retain,
	})
	soon := time.Now().Add(300 * time.Millisecond)
	body := fmt.Sprintf(`{"schedules": [%q, %q], "callback": {"type": "greet", "data": {"name": "Ada"}}}`,
		job.FormatTime(soon), job.FormatTime(soon.Add(200*time.Millisecond)))
	request := httptest.NewRequestWithContext(ctx, http.MethodPut, "/v1/jobs/morning", strings.NewReader(body))
	request.Header.Set("Content-Type", "application/json")
	answer := httptest.NewRecorder()
	if api.ServeHTTP(answer, request); answer.Code != http.StatusCreated {
		return fmt.Errorf("the job was not accepted: %s", answer.Body)
	}

	for range 2 {
		if _, err := write(<-greeter.greeted + "\n"); err != nil {
			return err
		}
	}
	return nil
}
