package callbackstest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/job"
)

func testConcurrent(t *testing.T, s suite) {
	const senders, each = 300, 5
	ctx := limited(t)
	var all sync.WaitGroup
	var mu sync.Mutex
	sent := map[job.ID]string{}
	for i := range senders {
		all.Go(func() {
			for j := range each {
				payload := fmt.Sprintf(`[%d,%d]`, i, j)
				d := s.delivery(payload)
				for {
					err := s.Sender.Send(ctx, d)
					if err == nil {
						break
					}
					failure, ok := errors.AsType[*callbacks.Failure](err)
					if !ok || !failure.Unavailable || ctx.Err() != nil {
						t.Errorf("delivery %s: %v", payload, err)
						return
					}
					time.Sleep(failure.After)
				}
				mu.Lock()
				sent[d.ID] = payload
				mu.Unlock()
			}
		})
	}
	all.Wait()
	if len(sent) != senders*each {
		t.Fatalf("%d of %d were sent", len(sent), senders*each)
	}
	for id, payload := range sent {
		if got := s.Await(ctx, t, id).Payload; got != payload {
			t.Fatalf("delivery %s arrived with the payload %s, and not %s", id, got, payload)
		}
	}
}

func testValidate(t *testing.T, s suite) {
	bad := slices.Concat(s.Bad, []Bad{
		{Name: "nothing", Data: ``, Pointers: []string{""}},
		{Name: "not JSON", Data: `{`, Pointers: []string{""}},
		{Name: "array", Data: `[]`, Pointers: []string{""}},
		{Name: "number", Data: `1`, Pointers: []string{""}},
		{
			Name:     "unknown field",
			Data:     s.edited(t, func(m map[string]jsontext.Value) { m["non/sense"] = jsontext.Value(`1`) }),
			Pointers: []string{"/non~1sense"},
		},
		{
			Name:     "repeated field",
			Data:     strings.Replace(string(s.Data(`{}`)), "{", `{"payload":1,`, 1),
			Pointers: []string{"/payload"},
		},
	})
	for _, b := range bad {
		t.Run(b.Name, func(t *testing.T) {
			err := s.Sender.Validate([]byte(b.Data))
			s.keepsSecrets(t, err)
			invalid, ok := errors.AsType[*job.Invalid](err)
			if !ok {
				t.Fatalf("Validate(%.200s) = %v, want a *job.Invalid", b.Data, err)
			}
			var pointers []string
			for _, f := range invalid.Fields {
				pointers = append(pointers, f.Pointer)
				if f.Message == "" {
					t.Errorf("%s has no message", f.Pointer)
				}
			}
			if !slices.Equal(pointers, b.Pointers) {
				t.Errorf("Validate(%.200s) names %q, want %q: %v", b.Data, pointers, b.Pointers, err)
			}
		})
	}
	t.Run("unaccepted data is not sent", func(t *testing.T) {
		d := s.delivery(`{}`)
		d.Data = []byte(`{"payload":`)
		failure, ok := errors.AsType[*callbacks.Failure](s.send(limited(t), t, d))
		if !ok || !failure.Permanent {
			t.Errorf("it is %v, want a permanent failure", failure)
		}
	})
}

// edited returns callback data with some member added or removed.
func (s suite) edited(t *testing.T, edit func(members map[string]jsontext.Value)) string {
	t.Helper()
	var members map[string]jsontext.Value
	if err := json.Unmarshal(s.Data(`{}`), &members); err != nil {
		t.Fatal(err)
	}
	edit(members)
	data, err := json.Marshal(members)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func testGood(t *testing.T, s suite) {
	for name, data := range s.Good {
		t.Run(name, func(t *testing.T) {
			ctx := limited(t)
			if err := s.Sender.Validate(data); err != nil {
				t.Fatalf("Validate(%.200s) = %v", data, err)
			}
			d := s.delivery(`{}`)
			d.Data = data
			s.deliver(ctx, t, d)
			s.Await(ctx, t, d.ID)
		})
	}
}

// testDestination: data that go to one place name one destination, whatever else they are, and no secret with it.
func testDestination(t *testing.T, s suite) {
	first, second := s.Sender.Destination(s.Data(`{"a":1}`)), s.Sender.Destination(s.Data(`[2]`))
	if first == "" || first != second {
		t.Errorf("two payloads to one receiver have the destinations %q and %q", first, second)
	}
	for name, data := range s.Good {
		to := s.Sender.Destination(data)
		if to == "" || len(to) > 300 {
			t.Errorf("%s: the destination is %q", name, to)
		}
		for _, secret := range s.Secrets {
			if strings.Contains(to, secret) {
				t.Errorf("%s: a secret stands in the destination %q", name, to)
			}
		}
	}
}

func testFailures(t *testing.T, s suite) {
	s.deliver(limited(t), t, s.delivery(`{}`)) // so that a connection is there to be lost
	for _, f := range s.Failures {
		t.Run(f.Name, func(t *testing.T) {
			ctx := limited(t)
			d := s.delivery(`{}`)
			if f.Data != nil {
				d.Data = f.Data
			}
			if err := s.Sender.Validate(d.Data); err != nil {
				t.Fatalf("the data is not accepted: %v", err)
			}
			undo := func() {}
			if f.Begin != nil {
				undo = sync.OnceFunc(f.Begin(t))
				t.Cleanup(undo)
			}
			err := s.send(ctx, t, d)
			if err == nil {
				t.Fatal("the attempt succeeded")
			}
			var got callbacks.Failure
			if failure, ok := errors.AsType[*callbacks.Failure](err); ok {
				got = *failure
			}
			if got.Permanent != f.Want.Permanent || got.Unavailable != f.Want.Unavailable {
				t.Errorf("%v: permanent %v, unavailable %v; want %v, %v",
					err, got.Permanent, got.Unavailable, f.Want.Permanent, f.Want.Unavailable)
			}
			if got.Blame != f.Want.Blame {
				t.Errorf("%v: it speaks of %d, want %d", err, got.Blame, f.Want.Blame)
			}
			if f.Want.Unavailable {
				if got.After <= 0 || got.After > patience {
					t.Errorf("%v: a pause of %s", err, got.After)
				}
			} else if got.After != f.Want.After {
				t.Errorf("%v: a pause of %s, want %s", err, got.After, f.Want.After)
			}
			for _, text := range f.Says {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("the error %q does not say %q", err, text)
				}
			}
			undo()
			next := s.delivery(`"the receiver is well again"`)
			s.deliver(ctx, t, next)
			s.Await(ctx, t, next.ID)
		})
	}
}

func testTaken(t *testing.T, s suite) {
	ctx := limited(t)
	s.deliver(ctx, t, s.delivery(`{}`))
	hang := s.Hang(t)
	t.Cleanup(hang.Resume)

	var resumed atomic.Bool
	d := s.delivery(`{}`)
	result := make(chan error, 1)
	go func() {
		err := s.Sender.Send(ctx, d)
		if err == nil && !resumed.Load() {
			err = errors.New("success was told while the receiver took nothing")
		}
		result <- err
	}()
	hang.Held(d.ID)
	resumed.Store(true)
	hang.Resume()
	if err := <-result; err != nil {
		failure, ok := errors.AsType[*callbacks.Failure](err)
		if !ok || !failure.Unavailable {
			t.Fatal(err)
		}
		s.deliver(ctx, t, d)
	}
	s.Await(ctx, t, d.ID)
}

func testContext(t *testing.T, s suite) {
	s.deliver(limited(t), t, s.delivery(`{}`))

	t.Run("ended before", func(t *testing.T) {
		ctx, cancel := context.WithCancel(limited(t))
		cancel()
		if err := s.send(ctx, t, s.delivery(`{}`)); err == nil {
			t.Error("the attempt succeeded")
		}
	})
	t.Run("ends while the receiver hangs", func(t *testing.T) {
		hang := s.Hang(t)
		t.Cleanup(hang.Resume)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		const attempts = 20
		deliveries := make([]callbacks.Delivery, attempts)
		results := make(chan error, attempts)
		for i := range attempts {
			deliveries[i] = s.delivery(`{}`)
			go func() { results <- s.Sender.Send(ctx, deliveries[i]) }()
		}
		for _, d := range deliveries {
			hang.Held(d.ID)
		}
		cancel()
		limit := limited(t)
		for range attempts { // the receiver hangs on, so only the context's end can end them
			select {
			case err := <-results:
				s.keepsSecrets(t, err)
				if err == nil {
					t.Error("an attempt succeeded")
				}
			case <-limit.Done():
				t.Fatal("an attempt goes on after its context ended")
			}
		}
		hang.Resume()
		next := s.delivery(`{}`)
		s.deliver(limit, t, next)
		s.Await(limit, t, next.ID)
	})
}
