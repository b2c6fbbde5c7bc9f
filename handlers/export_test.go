package handlers

import (
	"context"
	"regexp"
	"sync/atomic"
	"time"

	"github.com/carillon-scheduler/carillon/access"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// Routes lists the router's routes as "METHOD /path/:parameter".
func Routes(config Config) []string {
	var routes []string
	for _, r := range newEngine(config).Routes() {
		routes = append(routes, r.Method+" "+r.Path)
	}
	return routes
}

// Gathered offers items of a weight while no chunk is taken, waits until nothing moves any more, and answers how many
// items were taken.
func Gathered(ctx context.Context, weight int, wait func()) int {
	chunks := make(chan chunk, 1)
	var taken atomic.Int64
	go func() {
		for gather(ctx, chunks, item{weight: weight, arrived: time.Now}) {
			taken.Add(1)
		}
	}()
	wait()
	return int(taken.Load())
}

// Place is the place of a route in the table of permissions.
type Place struct {
	Method, Path string
	Needs        access.Permission
	Extent       string
}

// Places returns the places of all routes, in the form of the specification.
func Places() (all []Place) {
	extents := map[subject]string{
		aboutItself: "service", aboutJobs: "jobs", aboutTenant: "tenant", aboutTenants: "tenants",
		aboutWholeTenants: "whole-tenants", aboutEverything: "everything",
	}
	a := &api{}
	for _, r := range a.routes() {
		path := regexp.MustCompile(`:(\w+)`).ReplaceAllString(r.path, "{$1}")
		all = append(all, Place{r.method, path, r.needs, extents[r.about]})
	}
	return all
}

// WithoutACaller makes all calls of the API's store, without a caller, and returns their errors.
func WithoutACaller(ctx context.Context, jobs store.Jobs, name job.Name) map[string]error {
	s := within{jobs}
	errs := map[string]error{
		"Amend":   s.Amend(ctx, store.Amendment{Name: name}),
		"Pause":   s.Pause(ctx, name, "", time.Now()),
		"Resume":  s.Resume(ctx, name, "", time.Now()),
		"Trigger": s.Trigger(ctx, job.Occurrence{Name: name}),
		"Put":     s.Put(ctx, []store.Put{{Job: job.Job{Name: name}}})[0].Err,
	}
	_, errs["Cancel"] = s.Cancel(ctx, []job.Name{name}, store.Asked{})
	_, errs["Jobs"] = s.Jobs(ctx, store.JobFilter{Tenant: name.Tenant, Limit: 1})
	_, _, errs["Occurrences"] = s.Occurrences(ctx, store.OccurrenceFilter{Name: name, Limit: 1})
	_, errs["DeadLetters"] = s.DeadLetters(ctx, store.DeadLetterFilter{Tenant: name.Tenant, Limit: 1})
	_, errs["SettleDead"] = s.SettleDead(ctx, store.DeadSettlement{Tenant: name.Tenant})
	return errs
}
