package handlers

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon/access"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// within is a store that shows and changes only objects in the caller's scope. It takes the caller from the context, so
// every call of a handler is bounded. Without a caller, it refuses all calls.
type within struct{ jobs store.Jobs }

var _ store.Jobs = within{}

var errNoCaller = errors.New("a request reached the store without a caller")

// scopeIn returns the caller's scope within a tenant; ok is false if the tenant is beyond it.
func scopeIn(ctx context.Context, tenant string) (scope access.Scope, ok bool, err error) {
	w := callerOf(ctx)
	if w == nil {
		return scope, false, errNoCaller
	}
	return w.Scope, w.Scope.HasTenant(tenant), nil
}

// has reports whether a job is in the caller's scope.
func has(ctx context.Context, name job.Name) (bool, error) {
	scope, ok, err := scopeIn(ctx, name.Tenant)
	return ok && scope.HasKey(name.Key), err
}

// beyond returns the error of a put beyond the caller's scope.
func beyond(scope access.Scope) error {
	return &statusError{http.StatusForbidden,
		fmt.Sprintf("your key is for jobs whose keys begin with %q; this job's key does not", scope.KeyPrefix)}
}

// longer returns the longer one of two prefixes; ok is false if no key begins with both.
func longer(a, b string) (prefix string, ok bool) {
	if len(a) < len(b) {
		a, b = b, a
	}
	return a, strings.HasPrefix(a, b)
}

// Put implements [store.Jobs]. It puts no job if one of them is beyond the scope: handlers refuse such jobs before.
func (s within) Put(ctx context.Context, puts []store.Put) []store.PutResult {
	err := errNoCaller
	if by := callerOf(ctx); by != nil {
		err = allWithin(by.Scope, puts)
	}
	if err != nil {
		return slices.Repeat([]store.PutResult{{Err: err}}, len(puts))
	}
	return s.jobs.Put(ctx, puts)
}

// allWithin returns an error if one of some puts is beyond a scope.
func allWithin(scope access.Scope, puts []store.Put) error {
	for i := range puts {
		if name := &puts[i].Job.Name; !scope.HasTenant(name.Tenant) || !scope.HasKey(name.Key) {
			return beyond(scope)
		}
	}
	return nil
}

// Cancel implements [store.Jobs]. It finds no job if one of them is beyond the scope: handlers name a single job, or
// jobs found by Jobs.
func (s within) Cancel(ctx context.Context, names []job.Name, asked store.Asked) ([]store.CancelResult, error) {
	for _, name := range names {
		if ok, err := has(ctx, name); err != nil || !ok {
			return make([]store.CancelResult, len(names)), err
		}
	}
	return s.jobs.Cancel(ctx, names, asked)
}

// one makes a change of one job.
func one(ctx context.Context, name job.Name, change func() error) error {
	switch ok, err := has(ctx, name); {
	case err != nil:
		return err
	case !ok:
		return store.ErrNotFound
	default:
		return change()
	}
}

// Amend implements [store.Jobs].
func (s within) Amend(ctx context.Context, a store.Amendment) error {
	return one(ctx, a.Name, func() error { return s.jobs.Amend(ctx, a) })
}

// Pause implements [store.Jobs].
func (s within) Pause(ctx context.Context, name job.Name, version job.Revision, now time.Time) error {
	return one(ctx, name, func() error { return s.jobs.Pause(ctx, name, version, now) })
}

// Resume implements [store.Jobs].
func (s within) Resume(ctx context.Context, name job.Name, version job.Revision, now time.Time) error {
	return one(ctx, name, func() error { return s.jobs.Resume(ctx, name, version, now) })
}

// Trigger implements [store.Jobs].
func (s within) Trigger(ctx context.Context, o job.Occurrence) error {
	return one(ctx, o.Name, func() error { return s.jobs.Trigger(ctx, o) })
}

// Jobs implements [store.Jobs].
func (s within) Jobs(ctx context.Context, f store.JobFilter) ([]store.JobStatus, error) {
	scope, ok, err := scopeIn(ctx, f.Tenant)
	if f.Key != "" {
		ok = ok && scope.HasKey(f.Key)
	} else if ok {
		f.Prefix, ok = longer(f.Prefix, scope.KeyPrefix)
	}
	if err != nil || !ok {
		return nil, err
	}
	return s.jobs.Jobs(ctx, f)
}

// Occurrences implements [store.Jobs].
func (s within) Occurrences(ctx context.Context, f store.OccurrenceFilter) ([]job.Occurrence, int, error) {
	if ok, err := has(ctx, f.Name); err != nil || !ok {
		return nil, 0, err
	}
	return s.jobs.Occurrences(ctx, f)
}

// DeadLetters implements [store.Jobs].
func (s within) DeadLetters(ctx context.Context, f store.DeadLetterFilter) ([]job.Occurrence, error) {
	scope, ok, err := scopeIn(ctx, f.Tenant)
	if f.Key != "" {
		ok = ok && scope.HasKey(f.Key)
	} else if ok {
		f.Prefix, ok = longer(f.Prefix, scope.KeyPrefix)
	}
	if err != nil || !ok {
		return nil, err
	}
	return s.jobs.DeadLetters(ctx, f)
}

// SettleDead implements [store.Jobs]. A dead letter's id does not contain its job's key, so handlers must settle only
// dead letters that they have found by DeadLetters.
func (s within) SettleDead(ctx context.Context, d store.DeadSettlement) (int, error) {
	if _, ok, err := scopeIn(ctx, d.Tenant); err != nil || !ok {
		return 0, err
	}
	return s.jobs.SettleDead(ctx, d)
}
