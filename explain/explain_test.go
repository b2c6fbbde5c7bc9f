package explain_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/explain"
	"github.com/carillon-scheduler/carillon/history"
	"github.com/carillon-scheduler/carillon/job"
)

// Here are the facts that take an outage of a store, or a large store, to make.

var now = time.Date(2026, 11, 23, 9, 0, 0, 0, time.UTC)

// question returns a question about an hourly job that has missed an instant and has run for long.
func question(at time.Time) *explain.Question {
	crontab, err := job.ParseCrontab("0 * * * *")
	if err != nil {
		panic(err)
	}
	j := &job.Job{Name: job.Name{Tenant: "acme", Key: "k"}, Revision: job.NewRevision(now.Add(-100 * time.Hour))}
	j.Schedule.Crontab, j.Schedule.Anchor = crontab, now.Add(-100*time.Hour)
	j.Cursor, j.Planned, j.Missed = now.Add(time.Hour), 100, 1
	j.CreatedAt, j.UpdatedAt = now.Add(-100*time.Hour), now.Add(-100*time.Hour)
	return &explain.Question{
		Name: j.Name, Job: j, Now: now, At: at, Replicas: 1, Kept: explain.Kept{On: true, For: 24 * time.Hour},
	}
}

func TestGapOfHistory(t *testing.T) {
	t.Parallel()
	at := now.Add(-3 * time.Hour)
	for name, c := range map[string]struct {
		gap  history.Gap
		want explain.Code
	}{
		"before": {history.Gap{From: at.Add(-2 * time.Hour), Until: at.Add(-time.Hour)}, explain.Unknown},
		"within": {history.Gap{From: at.Add(-time.Hour), Until: at.Add(time.Minute)}, explain.NotKept},
		"after":  {history.Gap{From: at.Add(time.Hour), Until: at.Add(2 * time.Hour)}, explain.NotKept}, // it may have been late
	} {
		q := question(at)
		q.Kept.Gap = &c.gap
		if got := explain.Explain(q); got.Code != c.want {
			t.Errorf("%s: %s, %s", name, got.Code, got.Summary)
		}
	}
}

func TestLongQueue(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		queue explain.Queue
		want  string
	}{
		"long":    {explain.Queue{Known: true, Ahead: 10_000, AtLeast: true, Share: 1, PerSecond: 100}, "waits behind at least 10,000 others."},
		"no rate": {explain.Queue{Known: true, Ahead: 1, Share: 1}, "waits behind another one."},
		"hidden":  {explain.Queue{Ahead: 1000, Share: 0.5, PerSecond: 100}, "waits behind others; it is likely to start about 2026-11-23T09:00:20Z."},
		"slow":    {explain.Queue{Known: true, Ahead: 1000, Share: 0.5, PerSecond: 1e-300}, "waits behind 1,000 others; it is likely to start about"},
	} {
		q := question(now.Add(-time.Hour))
		q.Pending = []job.Occurrence{{Name: q.Name, Revision: q.Job.Revision, Timestamp: q.At, DueAt: q.At}}
		q.Queue = &c.queue
		got := explain.Explain(q)
		if got.Code != explain.Backlog || !strings.Contains(got.Summary, c.want) {
			t.Errorf("%s: %s %q", name, got.Code, got.Summary)
		}
		if name == "hidden" && strings.Contains(got.Facts[0].Text, "1,000") {
			t.Errorf("%s: the fact has the number: %s", name, got.Facts[0].Text)
		}
	}
}

// Slots are shared by the weights of priorities, and then by those of tenants.
func TestShare(t *testing.T) {
	t.Parallel()
	waiter := func(tenant string, p job.Priority, weight, tenantWeight float64) explain.Waiter {
		return explain.Waiter{
			Lane: job.Lane{Tenant: tenant, Priority: p}, Priority: p, PriorityWeight: weight, TenantWeight: tenantWeight,
		}
	}
	own := waiter("acme", job.PriorityNormal, 25, 1)
	for name, c := range map[string]struct {
		others []explain.Waiter
		want   float64
	}{
		"alone":             {nil, 1},
		"itself":            {[]explain.Waiter{own}, 1},
		"a tenant":          {[]explain.Waiter{waiter("bolt", job.PriorityNormal, 25, 3)}, 0.25},
		"a priority":        {[]explain.Waiter{waiter("acme", job.PriorityHigh, 75, 1)}, 0.25},
		"two of a priority": {[]explain.Waiter{waiter("acme", job.PriorityHigh, 75, 1), waiter("bolt", job.PriorityHigh, 75, 1)}, 0.25},
		"both":              {[]explain.Waiter{waiter("bolt", job.PriorityHigh, 75, 1), waiter("bolt", job.PriorityNormal, 25, 1)}, 0.125},
	} {
		if got := explain.Share(own, c.others); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// A job with far more occurrences at an instant than are read says so.
func TestManyOccurrences(t *testing.T) {
	t.Parallel()
	q := question(now.Add(time.Hour))
	for i := range 1200 {
		q.Pending = append(q.Pending, job.Occurrence{
			Name: q.Name, Revision: q.Job.Revision, Position: i, Timestamp: q.At, DueAt: q.At,
		})
	}
	q.More = true
	got := explain.Explain(q)
	if want := "Of the first 1,200 occurrences of 2026-11-23T10:00:00Z that were read, 1,200 wait."; got.Summary != want || got.Facts[0].Count != 1200 {
		t.Errorf("%q, want %q", got.Summary, want)
	}
}

// The answer reports a zone that this machine does not have, and concludes nothing from it.
func TestUnknownZone(t *testing.T) {
	t.Parallel()
	q := question(now.Add(-time.Hour))
	q.Job.Schedule.Zone = "Mars/Olympus"
	if got := explain.Explain(q); got.Code != explain.Unknown || !strings.Contains(got.Facts[0].Text, "Mars/Olympus") {
		t.Errorf("%s: %+v", got.Code, got.Facts)
	}
}

// A key for one tenant sees the likely start of its delivery, but not the number of other tenants' occurrences.
func TestNumbersAreForThoseWhoSeeAllTenants(t *testing.T) {
	t.Parallel()
	bubble(t, keeps{}, func(w *world) {
		const of = "Carillon-Tenant: acme"
		w.concurrency = 1
		w.replica()
		w.hangs(4 * time.Second)
		for i := range 10 {
			w.put(fmt.Sprint("other", i), w.at(time.Second), of)
		}
		w.put("k", w.at(2*time.Second), of)
		w.until(23 * time.Second)
		all, own := w.explain("k", "next", of), w.explain("k", "next", of, "Authorization: Bearer acme")
		if all.Code != "backlog" || all.Facts[0].Count == 0 || !strings.Contains(all.Facts[0].Text, "per second") {
			t.Errorf("with a key for all tenants: %s", all.text())
		}
		if own.Code != "backlog" || own.Facts[0].Count != 0 || strings.Contains(own.text(), "per second") || own.Facts[0].Next != all.Facts[0].Next {
			t.Errorf("with a key for one tenant: %s", own.text())
		}
	})
}
