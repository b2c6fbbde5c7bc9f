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

// tenantSide is embedded under a name other than that of one of its methods.
type tenantSide = interface{ store.Tenants }

// memory is a store of records, and of tenants.
type memory struct {
	tenantSide
	records []store.Document
	tenants []job.Tenant // by name
	page    int          // how many records it exports at once
	fail    int          // the call that fails, from 1
	failure error        // with which
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

func (m *memory) Tenants(_ context.Context, filter store.TenantFilter) ([]job.Tenant, error) {
	from, there := slices.BinarySearchFunc(m.tenants, filter.After, byName)
	if there {
		from++
	}
	return m.tenants[from:min(from+filter.Limit, len(m.tenants))], m.call()
}

func (m *memory) MeetTenants(_ context.Context, tenants []job.Tenant) (inserted int, err error) {
	if err := m.call(); err != nil {
		return 0, err
	}
	m.sizes = append(m.sizes, len(tenants))
	for _, t := range tenants {
		if i, there := slices.BinarySearchFunc(m.tenants, t.Name, byName); !there {
			m.tenants = slices.Insert(m.tenants, i, t)
			inserted++
		}
	}
	return inserted, nil
}

func byName(t job.Tenant, name string) int { return strings.Compare(t.Name, name) }

func nameOf(r store.Document) string {
	if r.Job != nil {
		return r.Job.String()
	}
	return r.Occurrence.ID.String()
}

// some is a store of n tenants, of n jobs, each with an occurrence, and of a dead letter.
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

// endless exports jobs that it does not keep.
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

// forgetful imports records and does not keep them.
type forgetful struct{ tenantSide }

func (forgetful) Import(_ context.Context, records []store.Document) (int, error) {
	return len(records), nil
}
func (forgetful) Export(context.Context, store.Place, int) ([]store.Document, store.Place, error) {
	return nil, "", nil
}
