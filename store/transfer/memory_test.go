package transfer_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// memory is a store of jobs, occurrences and tenants. It presents the tenants as records.
type memory struct {
	come    []store.Record // check-ins, sorted
	records []store.Document
	tenants []job.Tenant                  // by name
	given   map[string]job.TenantSettings // of tenants that are not inserted yet
	page    int                           // the number of records that one call exports
	fail    int                           // the call that fails, from 1
	failure error                         // the error of that call
	calls   int
	sizes   []int // of the imported batches
	check   func()
}

func (m *memory) call() error {
	m.calls++
	if m.check != nil {
		m.check()
	}
	if m.calls == m.fail {
		return m.failure
	}
	return nil
}

func (m *memory) Export(_ context.Context, after store.Place, _ int) ([]store.Document, store.Place, error) {
	if err := m.call(); err != nil {
		return nil, "", err
	}
	from := 0
	if after != "" {
		from, _ = strconv.Atoi(strings.TrimPrefix(string(after), `behind "`))
	}
	to := min(from+m.page, len(m.records))
	return m.records[from:to], store.Place(`behind "` + strconv.Itoa(to)), nil
}

func (m *memory) Import(_ context.Context, records []store.Document) (inserted int, err error) {
	if err := m.call(); err != nil {
		return 0, err
	}
	there := map[string]bool{}
	for _, r := range m.records {
		there[nameOf(r)] = true
	}
	m.sizes = append(m.sizes, len(records))
	for _, r := range records {
		if !there[nameOf(r)] {
			m.records = append(m.records, r)
			inserted++
		}
	}
	return inserted, nil
}

func (m *memory) Records(_ context.Context, filter store.RecordFilter) (page []store.Record, err error) {
	if filter.Collection == "check-ins" {
		return m.comeAfter(filter), nil
	}
	keys := slices.Sorted(slices.Values(filter.Keys))
	for _, t := range m.tenants {
		body := t.Settings.Encode()
		if filter.Collection == "tenants" {
			body = fmt.Appendf(nil, `{"firstSeen":%d}`, t.FirstSeen.UnixMilli())
		}
		_, wanted := slices.BinarySearch(keys, t.Name)
		if t.Name > filter.After && (wanted || len(keys) == 0) && body != nil && len(page) < filter.Limit {
			page = append(page, store.Record{Key: t.Name, Version: "v", Body: body})
		}
	}
	if len(keys) > 0 {
		return page, nil // these reads belong to a call that was already counted
	}
	return page, m.call()
}

// comeAfter returns a page of check-ins.
func (m *memory) comeAfter(filter store.RecordFilter) (page []store.Record) {
	for _, r := range m.come {
		if r.Key > filter.After && len(page) < filter.Limit {
			page = append(page, r)
		}
	}
	return page
}

func (m *memory) WriteRecords(_ context.Context, changes []store.RecordChange) []error {
	answers := make([]error, len(changes))
	if changes[0].Collection == "check-ins" {
		for _, c := range changes {
			if !slices.ContainsFunc(m.come, func(r store.Record) bool { return r.Key == c.Key }) {
				m.come = append(m.come, store.Record{Key: c.Key, Version: c.Version, Body: c.Body, ExpiresAt: c.ExpiresAt})
			}
		}
		slices.SortFunc(m.come, func(a, b store.Record) int { return strings.Compare(a.Key, b.Key) })
		return answers
	}
	if changes[0].Collection == "tenants" {
		if err := m.call(); err != nil {
			return slices.Repeat([]error{err}, len(changes))
		}
		m.sizes = append(m.sizes, len(changes))
	}
	for i, c := range changes {
		at, there := slices.BinarySearchFunc(m.tenants, c.Key, byName)
		switch {
		case there:
			answers[i] = store.ErrPrecondition
		case c.Collection == "tenants":
			var ms int64
			if _, err := fmt.Sscanf(string(c.Body), `{"firstSeen":%d}`, &ms); err != nil {
				panic(err)
			}
			m.tenants = slices.Insert(m.tenants, at, job.Tenant{Name: c.Key, FirstSeen: time.UnixMilli(ms).UTC(), Settings: m.given[c.Key]})
		default:
			settings, err := job.DecodeTenantSettings(c.Body)
			if err != nil {
				panic(err)
			}
			if m.given == nil {
				m.given = make(map[string]job.TenantSettings)
			}
			m.given[c.Key] = settings
		}
	}
	return answers
}

func byName(t job.Tenant, name string) int { return strings.Compare(t.Name, name) }

func nameOf(r store.Document) string {
	if r.Job != nil {
		return r.Job.String()
	}
	return r.Occurrence.ID.String()
}

// some makes a store of n tenants, n jobs with one occurrence each, and one dead letter.
func some(n int) *memory {
	m := &memory{page: 3}
	for i := range n {
		m.tenants = append(m.tenants, job.Tenant{Name: fmt.Sprintf("t%05d", i), FirstSeen: epoch, Settings: job.TenantSettings{MaxInFlight: i}})
	}
	for i := range n {
		m.records = append(m.records, store.Document{Job: &job.Job{
			Name: job.Name{Tenant: "t", Key: fmt.Sprint("k", i)}, Revision: "r", Version: "v", CreatedAt: epoch, UpdatedAt: epoch, ExpiresAt: epoch,
			Callback: job.Callback{Type: "http", Data: []byte("{ }")}, Schedule: job.Schedule{Instants: []time.Time{epoch}},
		}})
	}
	for i := range n {
		n := job.Name{Tenant: "t", Key: fmt.Sprint("k", i)}
		m.records = append(m.records, store.Document{Occurrence: &job.Occurrence{
			ID: job.OccurrenceID(n, "r", epoch, 0, ""), Name: n, Revision: "r", Timestamp: epoch, DueAt: epoch,
		}})
	}
	m.records = append(m.records, store.Document{Occurrence: &job.Occurrence{
		ID: job.OccurrenceID(job.Name{}, "", epoch, 7, ""), Name: job.Name{Tenant: "t", Key: "dead"}, Timestamp: epoch, FailedAt: epoch,
		Own: &job.Target{Callback: job.Callback{Type: "http", Data: []byte("1")}},
	}})
	return m
}

// endless exports jobs without an end and keeps none.
type endless struct {
	memory
	jobs int
	data []byte
}

func (e *endless) Export(_ context.Context, after store.Place, _ int) (records []store.Document, _ store.Place, _ error) {
	from, _ := strconv.Atoi(string(after))
	for i := from; i < min(from+50, e.jobs); i++ {
		records = append(records, store.Document{Job: &job.Job{
			Name: job.Name{Tenant: "t", Key: fmt.Sprint("k", i)}, Revision: "r", Version: "v", CreatedAt: epoch, UpdatedAt: epoch, ExpiresAt: epoch,
			Callback: job.Callback{Type: "http", Data: bytes.Clone(e.data)},
		}})
	}
	return records, store.Place(fmt.Sprint(from + len(records))), nil
}

// forgetful accepts imported records and does not keep them.
type forgetful struct{ store.Store }

func (forgetful) Import(_ context.Context, records []store.Document) (int, error) {
	return len(records), nil
}
func (forgetful) Export(context.Context, store.Place, int) ([]store.Document, store.Place, error) {
	return nil, "", nil
}
