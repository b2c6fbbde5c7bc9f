package limits

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// collection holds a record for each tenant that has limits of its own, by its name.
const collection = "tenant-limits"

// Draft are a tenant's own limits as an administrator submits and sees them, and as they are stored. A field that is
// left out has the default of the service; 0 is no limit.
type Draft struct {
	RequestsPerSecond *float64 `json:"requestsPerSecond,omitzero" validate:"omitnil,min=0,max=1000000"`
	RequestBurst      *int     `json:"requestBurst,omitzero" validate:"omitnil,min=0,max=1000000"`
	BatchBytes        *int     `json:"batchBytesPerSecond,omitzero" validate:"omitnil,min=0,max=1000000000"`
	MaxJobs           *int     `json:"maxJobs,omitzero" validate:"omitnil,min=0,max=1000000"`
	MaxPending        *int     `json:"maxPending,omitzero" validate:"omitnil,min=0,max=100000000"`
	MaxPayload        *int     `json:"maxPayload,omitzero" validate:"omitnil,min=0,max=1000000000"`
}

// ParseDraft reads limits as they are submitted. The error is a [*job.Malformed] or a [*job.Invalid].
func ParseDraft(body []byte) (Draft, error) {
	d, err := job.Parse[*Draft](body)
	if err != nil {
		return Draft{}, err
	}
	if value(d.RequestBurst) > 0 && (d.RequestsPerSecond == nil || *d.RequestsPerSecond == 0) {
		return Draft{}, job.InvalidField("/requestBurst", "needs requestsPerSecond beside it")
	}
	return *d, nil
}

// instead are the limits, with those that the draft has in their places.
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

// RateOf is a rate with a burst, which is a second's worth, and at least 1, if it is 0.
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

// age is how old the limits may be that a replica goes by.
const age = 5 * time.Second

// Own are the limits that tenants have of their own, as records of a store. Its methods are safe for concurrent use, by
// any number of processes. A nil Own has none.
type Own struct {
	records store.Records
	log     *slog.Logger

	known   atomic.Pointer[map[string]Draft] // by tenant; never changed
	loading sync.Mutex                       // is held while they are read, so that what is read last is kept
	mu      sync.Mutex
	read    time.Time // when reading them was last begun
	reading bool
	background
}

// background is what goes on behind requests.
type background struct {
	context context.Context //nolint:containedctx // of no request
	cancel  context.CancelFunc
	running sync.WaitGroup
}

// begin makes a background ready.
func (b *background) begin() { b.context, b.cancel = context.WithCancel(context.Background()) }

// Close ends what goes on in the background, and waits for that. Nothing may be asked for any more.
func (b *background) Close() error {
	b.cancel()
	b.running.Wait()
	return nil
}

// NewOwn are the limits that a store's records hold. They are read when they are first asked for, and every few seconds
// while they are. Until they could be read, and while they can't be, those that are known apply.
func NewOwn(records store.Records, log *slog.Logger) *Own {
	o := &Own{records: records, log: log}
	o.begin()
	return o
}

// instead are limits, with a tenant's own in their places.
func (o *Own) instead(of Limits, tenant string) Limits {
	if o == nil {
		return of
	}
	o.refresh()
	if known := o.known.Load(); known != nil {
		if d, ok := (*known)[tenant]; ok {
			return d.instead(of)
		}
	}
	return of
}

// refresh has the limits read again, in the background, if they are old.
func (o *Own) refresh() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.reading || !o.read.IsZero() && time.Since(o.read) < age {
		return
	}
	o.read, o.reading = time.Now(), true
	o.running.Go(func() {
		ctx, cancel := context.WithTimeout(o.context, age)
		defer cancel()
		if err := o.Load(ctx); err != nil && o.context.Err() == nil {
			o.log.Warn("tenants' limits can't be read; those that are known stay in force", "error", err)
		}
		o.mu.Lock()
		defer o.mu.Unlock()
		o.reading = false
	})
}

// Load reads all limits.
func (o *Own) Load(ctx context.Context) error {
	o.loading.Lock()
	defer o.loading.Unlock()
	known := make(map[string]Draft)
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

func decode(r store.Record) (d Draft, err error) {
	if err := json.Unmarshal(r.Body, &d); err != nil {
		return d, fmt.Errorf("the limits of tenant %s: %w", r.Key, err)
	}
	return d, nil
}

// Get reads a tenant's own limits from the store; none if it has none.
func (o *Own) Get(ctx context.Context, tenant string) (Draft, error) {
	records, err := o.records.Records(ctx, store.RecordFilter{Collection: collection, Keys: []string{tenant}, Limit: 1})
	if err != nil || len(records) == 0 {
		return Draft{}, err
	}
	return decode(records[0])
}

// Set gives a tenant limits in place of all of its own. This replica goes by them at once, all others within some
// seconds.
func (o *Own) Set(ctx context.Context, tenant string, d Draft) error {
	var body []byte
	if d != (Draft{}) {
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
		_ = o.Load(ctx) // if it fails, it is tried again soon
	}
	return err
}
