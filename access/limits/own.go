package limits

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/carillon-scheduler/carillon/history"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// collection has a record for each tenant with limits of its own, by its name.
const collection = "tenant-limits"

// Draft has the own limits of a tenant or a key, as they are submitted, shown and stored. A missing field means the
// service's default; 0 means no limit.
type Draft struct {
	RequestsPerSecond *float64 `json:"requestsPerSecond,omitzero" validate:"omitnil,min=0,max=1000000"`
	RequestBurst      *int     `json:"requestBurst,omitzero" validate:"omitnil,min=0,max=1000000"`
	BatchBytes        *int     `json:"batchBytesPerSecond,omitzero" validate:"omitnil,min=0,max=1000000000"`
	MaxJobs           *int     `json:"maxJobs,omitzero" validate:"omitnil,min=0,max=1000000"`
	MaxPending        *int     `json:"maxPending,omitzero" validate:"omitnil,min=0,max=100000000"`
	MaxPayload        *int     `json:"maxPayload,omitzero" validate:"omitnil,min=0,max=1000000000"`
}

// TenantDraft has the own limits of a tenant.
type TenantDraft struct {
	Draft `validate:"-"` // Check does that
	// History is the retention policy of the tenant; 0 keeps none.
	History *history.Policy `json:"history,omitzero" validate:"-"`
}

// ParseDraft reads submitted limits. The error is a [*job.Malformed] or a [*job.Invalid].
func ParseDraft(body []byte) (Draft, error) {
	d, err := job.Parse[*Draft](body)
	if err != nil {
		return Draft{}, err
	}
	var invalid job.Invalid
	d.Check("", &invalid)
	return *d, invalid.Err()
}

// ParseTenantDraft reads submitted limits of a tenant. The error is as that of [ParseDraft].
func ParseTenantDraft(body []byte) (TenantDraft, error) {
	d, err := job.Parse[*TenantDraft](body)
	if err != nil {
		return TenantDraft{}, err
	}
	return *d, nil
}

// Check implements [job.Checker].
func (d *TenantDraft) Check(invalid *job.Invalid) {
	if d == nil {
		invalid.Add("", "must be an object")
		return
	}
	job.CheckTags(&d.Draft, invalid)
	d.Draft.Check("", invalid)
}

// Check notes the faults of limits at a pointer, except for the ranges of single fields.
func (d *Draft) Check(pointer string, invalid *job.Invalid) {
	if value(d.RequestBurst) > 0 && (d.RequestsPerSecond == nil || *d.RequestsPerSecond == 0) {
		invalid.Add(pointer+"/requestBurst", "requires requestsPerSecond")
	}
}

// instead returns limits with the draft's limits in their places.
func (d *Draft) instead(of Limits) Limits {
	if d.RequestsPerSecond != nil {
		of.Requests = RateOf(*d.RequestsPerSecond, value(d.RequestBurst))
	}
	for _, f := range []struct {
		own *int
		to  *int
	}{{d.BatchBytes, &of.BatchBytes}, {d.MaxJobs, &of.Jobs}, {d.MaxPending, &of.Pending}, {d.MaxPayload, &of.Payload}} {
		if f.own != nil {
			*f.to = *f.own
		}
	}
	return of
}

// history returns the retention policy of a tenant, if usual is that of the service.
func (d *TenantDraft) history(usual history.Policy) history.Policy {
	if d.History != nil && usual.Keep > 0 {
		return *d.History
	}
	return usual
}

// RateOf returns a rate with a burst. A burst of 0 means the number of one second, at least 1.
func RateOf(perSecond float64, burst int) Rate {
	if perSecond == 0 {
		return Rate{}
	}
	if burst == 0 {
		burst = max(1, int(perSecond+0.5))
	}
	return Rate{perSecond, burst}
}

func value(p *int) int {
	if p == nil {
		return 0
	}
	return *p
}

// age is the maximum age of the limits that a replica applies, while the store answers within [patience]. They are read
// again some time before that, so that requests rarely wait.
const age = 5 * time.Second

// Own has the limits of single tenants, as records of a store. Its methods are safe for concurrent use, by any number
// of processes. A nil Own has no limits.
type Own struct {
	records store.Records
	log     *slog.Logger

	known   atomic.Pointer[map[string]TenantDraft] // by tenant; never changed
	loading chan struct{}                          // has room for one, who reads, so that the last read is kept
	mu      sync.Mutex
	asOf    time.Time     // start of the last read in the background, or end of a failed one
	reading chan struct{} // is closed at the end of a reading that is under way; nil if there is none
	until   time.Time     // requests wait for the reading until then; zero if they do not
	background
}

// background has the work that runs beside requests.
type background struct {
	context context.Context //nolint:containedctx // of no request
	cancel  context.CancelFunc
	running sync.WaitGroup
}

// begin initializes a background.
func (b *background) begin() { b.context, b.cancel = context.WithCancel(context.Background()) }

// Close ends the work in the background, and waits for that. No other method may be called after it.
func (b *background) Close() error {
	b.cancel()
	b.running.Wait()
	return nil
}

// NewOwn returns the limits in a store's records. They are read at their first use, and every few seconds while they
// are used; after a pause, the first uses wait for that, for a second at most. If a read fails, the last known limits
// apply.
func NewOwn(records store.Records, log *slog.Logger) *Own {
	o := &Own{records: records, log: log, loading: make(chan struct{}, 1)}
	o.begin()
	return o
}

// instead returns limits with a tenant's own limits in their places.
func (o *Own) instead(of Limits, tenant string) Limits {
	if o == nil {
		return of
	}
	d := o.of(tenant)
	return d.instead(of)
}

// History returns the retention policy of a tenant, if usual is that of the service.
func (o *Own) History(tenant string, usual history.Policy) history.Policy {
	if o == nil {
		return usual
	}
	d := o.of(tenant)
	return d.history(usual)
}

// of returns a tenant's own limits, as far as they are known.
func (o *Own) of(tenant string) TenantDraft {
	o.refresh()
	if known := o.known.Load(); known != nil {
		return (*known)[tenant]
	}
	return TenantDraft{}
}

// refresh has the limits read again, in the background, before they are too old. If they are too old, since they were
// not used for a while, it waits for the reading, but not for long.
func (o *Own) refresh() {
	if done, until := o.begun(); done != nil {
		tooLong := time.NewTimer(time.Until(until))
		defer tooLong.Stop()
		select {
		case <-done:
		case <-tooLong.C:
		}
	}
}

// begun begins a reading if it is time for one. It returns the end of a reading that is to be waited for, and until
// when; nil if there is none.
func (o *Own) begun() (done chan struct{}, until time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if old := time.Since(o.asOf); o.reading == nil && old >= age-patience {
		o.reading, o.until = make(chan struct{}), time.Time{}
		if old >= age {
			o.until = time.Now().Add(patience)
		}
		o.running.Go(o.readAgain)
	}
	if time.Now().Before(o.until) {
		done = o.reading
	}
	return done, o.until
}

// readAgain reads the limits in the background.
func (o *Own) readAgain() {
	ctx, cancel := context.WithTimeout(o.context, age)
	defer cancel()
	asOf := time.Now()
	if err := o.Load(ctx); err != nil {
		if asOf = time.Now(); o.context.Err() == nil {
			o.log.Warn("tenants' limits can't be read; the last known limits stay in force", "error", err)
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	close(o.reading)
	o.reading, o.asOf = nil, asOf
}

// Load reads all limits.
func (o *Own) Load(ctx context.Context) error {
	select { // no mutex: a request would wait for the store beyond its own time
	case o.loading <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-o.loading }()
	known := make(map[string]TenantDraft)
	filter := store.RecordFilter{Collection: collection, Limit: pageSize}
	for {
		page, err := o.records.Records(ctx, filter)
		if err != nil {
			return err
		}
		for _, r := range page {
			if known[r.Key], err = decode(r); err != nil {
				return err
			}
		}
		if len(page) < filter.Limit {
			break
		}
		filter.After = page[len(page)-1].Key
	}
	o.known.Store(&known)
	return nil
}

func decode(r store.Record) (d TenantDraft, err error) {
	if err := json.Unmarshal(r.Body, &d); err != nil {
		return d, fmt.Errorf("the limits of tenant %s: %w", r.Key, err)
	}
	return d, nil
}

// Get reads a tenant's own limits from the store; none if it has none.
func (o *Own) Get(ctx context.Context, tenant string) (TenantDraft, error) {
	records, err := o.records.Records(ctx, store.RecordFilter{Collection: collection, Keys: []string{tenant}, Limit: 1})
	if err != nil || len(records) == 0 {
		return TenantDraft{}, err
	}
	return decode(records[0])
}

// Set replaces all of a tenant's own limits. This replica applies them at once, all others within some seconds.
func (o *Own) Set(ctx context.Context, tenant string, d TenantDraft) error {
	var body []byte
	if d != (TenantDraft{}) {
		var err error
		if body, err = json.Marshal(d); err != nil {
			return err
		}
	}
	now := time.Now()
	err := o.records.WriteRecords(ctx, []store.RecordChange{{
		Collection: collection, Key: tenant, Version: job.NewRevision(now), Body: body, Now: now,
	}})[0]
	if err == nil {
		_ = o.Load(ctx) // a failed read is repeated soon
	}
	return err
}

// Copy copies the own limits of all tenants from one store to another, and returns their number. It skips tenants that
// have limits of their own there already. It may be repeated.
func Copy(ctx context.Context, from, to store.Records) (copied, there int, err error) {
	return store.CopyRecords(ctx, from, to, collection)
}
