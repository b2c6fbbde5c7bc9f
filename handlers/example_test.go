package handlers_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/callbacks/webhook"
	"github.com/carillon-scheduler/carillon/dispatcher"
	"github.com/carillon-scheduler/carillon/handlers"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store/memory"
)

// The API alone: this process accepts jobs, and replicas that run a dispatcher on the same store fire them. Their
// senders must have the same types.
func ExampleNew() {
	ctx := context.Background()
	jobs, err := memory.Open(ctx, "memory:") // sqlite.Open, mongodb.Open and so on outlive the process
	if err != nil {
		log.Fatal(err)
	}
	defer jobs.Close()
	hooks := webhook.New(webhook.Options{})
	defer hooks.Close()

	api := handlers.New(handlers.Config{
		Store: jobs, Inspector: jobs, Records: jobs, Callbacks: callbacks.NewRegistry(hooks),
		Expansion: dispatcher.Defaults.Expansion(), Retain: 24 * time.Hour,
		Limits: job.Limits{Instants: 1000, Payload: 64 << 10}, MaxBody: 1 << 20,
	})

	// A program serves it by http.Server; here a request is made without a network.
	request := httptest.NewRequest(http.MethodPut, "/v1/jobs/backup", strings.NewReader(
		`{"crontab": "30 2 * * *", "timezone": "Europe/Paris",
		  "callback": {"type": "http", "data": {"url": "https://example.com/backup"}}}`))
	request.Header.Set("Content-Type", "application/json")
	answer := httptest.NewRecorder()
	api.ServeHTTP(answer, request)
	fmt.Println(answer.Code, answer.Header().Get("Location"))
	// Output: 201 /v1/jobs/backup
}
