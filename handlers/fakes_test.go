package handlers_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// sender is a callback type that takes any data but an object with a member "refuse" or "panic".
type sender string

func (s sender) Type() string { return string(s) }

func (sender) Destination([]byte) string { return "somewhere" }

func (s sender) Validate(data []byte) error {
	if bytes.Contains(data, []byte(`"refuse"`)) {
		return job.InvalidField("/refuse", "is refused")
	}
	if bytes.Contains(data, []byte(`"panic"`)) {
		panic("as asked")
	}
	return nil
}

// watchedSender calls checked whenever it has been asked to check "last".
type watchedSender struct {
	sender
	checked func()
}

func (watchedSender) Destination([]byte) string { return "somewhere" }

func (s watchedSender) Validate(data []byte) error {
	if string(data) == `"last"` {
		s.checked()
	}
	return s.sender.Validate(data)
}

func (s sender) Send(context.Context, callbacks.Delivery) error { return errors.New("never sent") }

// faultyStore is a store whose API side fails while fault is set.
type faultyStore struct {
	store.Store
	mu    sync.Mutex
	fault error
	puts  [][]store.Put
	onPut func([]store.Put) // is called before each Put, if set
	// listed are the filters that occurrences were listed by.
	listed []store.OccurrenceFilter
	// onAmend is called before each Amend, if set.
	onAmend func()
	// amends counts them.
	amends int
	// reads counts how often a job was read.
	reads int
	// onJob is called before each reading of a job, if set.
	onJob func(job.Name)
	// tenantFault fails all calls about tenants, while it is set.
	tenantFault error
	met         []string
}

func (s *faultyStore) setFault(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = err
}

func (s *faultyStore) failing() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fault
}

func (s *faultyStore) Put(ctx context.Context, puts []store.Put) []store.PutResult {
	s.mu.Lock()
	s.puts = append(s.puts, puts)
	onPut, fault := s.onPut, s.fault
	s.mu.Unlock()
	if onPut != nil {
		onPut(puts)
	}
	if fault != nil {
		return slices.Repeat([]store.PutResult{{Err: fault}}, len(puts))
	}
	return s.Store.Put(ctx, puts)
}

// takePuts answers the puts since it was last called.
func (s *faultyStore) takePuts() [][]store.Put {
	s.mu.Lock()
	defer s.mu.Unlock()
	puts := s.puts
	s.puts = nil
	return puts
}

func (s *faultyStore) Cancel(ctx context.Context, n []job.Name, asked store.Asked) ([]store.CancelResult, error) {
	if err := s.failing(); err != nil {
		return nil, err
	}
	return s.Store.Cancel(ctx, n, asked)
}

func (s *faultyStore) Occurrences(ctx context.Context, f store.OccurrenceFilter) ([]job.Occurrence, int, error) {
	s.mu.Lock()
	s.listed = append(s.listed, f)
	s.mu.Unlock()
	return s.Store.Occurrences(ctx, f)
}

// takeListed answers the filters that occurrences were listed by since it was last called.
func (s *faultyStore) takeListed() []store.OccurrenceFilter {
	s.mu.Lock()
	defer s.mu.Unlock()
	listed := s.listed
	s.listed = nil
	return listed
}

func (s *faultyStore) Jobs(ctx context.Context, f store.JobFilter) ([]store.JobStatus, error) {
	s.mu.Lock()
	onJob := s.onJob
	if f.Key == "" {
		onJob = nil
	} else {
		s.reads++
	}
	s.mu.Unlock()
	if onJob != nil {
		onJob(job.Name{Tenant: f.Tenant, Key: f.Key})
	}
	if err := s.failing(); err != nil {
		return nil, err
	}
	return s.Store.Jobs(ctx, f)
}

func (s *faultyStore) Amend(ctx context.Context, amendment store.Amendment) error {
	s.mu.Lock()
	s.amends++
	onAmend := s.onAmend
	s.mu.Unlock()
	if onAmend != nil {
		onAmend()
	}
	if err := s.failing(); err != nil {
		return err
	}
	return s.Store.Amend(ctx, amendment)
}

// takeAmends answers how many amendments there were since it was last called.
func (s *faultyStore) takeAmends() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.amends
	s.amends = 0
	return n
}

// takeReads answers how often a job was read since it was last called.
func (s *faultyStore) takeReads() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.reads
	s.reads = 0
	return n
}

func (s *faultyStore) DeadLetters(ctx context.Context, f store.DeadLetterFilter) ([]job.Occurrence, error) {
	if err := s.failing(); err != nil {
		return nil, err
	}
	return s.Store.DeadLetters(ctx, f)
}

func (s *faultyStore) SettleDead(ctx context.Context, d store.DeadSettlement) (int, error) {
	if err := s.failing(); err != nil {
		return 0, err
	}
	return s.Store.SettleDead(ctx, d)
}

// failsControl is a store that is unavailable for pause, resume and trigger.
type failsControl struct{ apiSide }

func (failsControl) Pause(context.Context, job.Name, job.Revision, time.Time) error {
	return store.ErrUnavailable
}

func (failsControl) Resume(context.Context, job.Name, job.Revision, time.Time) error {
	return store.ErrUnavailable
}

func (failsControl) Trigger(context.Context, job.Occurrence) error { return store.ErrUnavailable }
