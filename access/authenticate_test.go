package access_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillon-scheduler/carillon/access"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// revoke revokes a key by the other replica.
func (b *bench) revoke(id string) {
	b.Helper()
	if err := b.other.Revoke(b.Context(), id, epoch); err != nil {
		b.Fatal(err)
	}
}

// A revocation holds on another replica within 5 s, however often the key is used there, and if it is not.
func TestRevocationHoldsEverywhere(t *testing.T) {
	for _, every := range []time.Duration{10 * time.Millisecond, time.Second, 3 * time.Second, 4999 * time.Millisecond, 0} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t)
			defer b.close()
			token, key := b.create(admin)
			b.expect("in use", token, epoch, nil)
			for end := time.Now().Add(20 * time.Second); every > 0 && time.Now().Before(end); time.Sleep(every) {
				b.expect("in use", token, epoch, nil)
			}
			b.revoke(key.ID)
			revoked := time.Now()
			for every > 0 && time.Since(revoked) < access.RevokedWithin {
				_, _ = b.keys.Authenticate(t.Context(), token, epoch) // either answer will do
				time.Sleep(min(every, access.RevokedWithin-time.Since(revoked)))
			}
			time.Sleep(access.RevokedWithin - time.Since(revoked))
			b.expect("5 s after its revocation", token, epoch, access.ErrUnauthenticated)
		})
	}
}

// While the store is unavailable, keys that were seen in the last five minutes are admitted, without waiting. So is a
// revoked key, for five minutes at most; when the store is back, for 5 s at most.
func TestOutage(t *testing.T) {
	for name, outage := range map[string]struct{ fails, hangs bool }{"fails": {fails: true}, "hangs": {hangs: true}} {
		for _, every := range []time.Duration{50 * time.Millisecond, 7 * time.Second} {
			t.Run(name+" "+every.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					b := newBench(t)
					defer b.close()
					token, key := b.create(admin)
					unseen, _ := b.create(admin)
					b.expect("before", token, epoch, nil)
					seen := time.Now()
					b.records.set(outage.fails, outage.hangs)
					b.revoke(key.ID)
					waited := 0
					for time.Since(seen) < access.OutageUpTo-2*time.Second {
						asked := time.Now()
						b.expect("in the outage", token, epoch, nil)
						if took := time.Since(asked); took > time.Second {
							t.Fatalf("it took %s", took)
						} else if took > 0 {
							waited++
						}
						time.Sleep(every)
					}
					if every < time.Second && waited > 1 {
						t.Errorf("%d requests waited, want 1", waited)
					}
					b.expect("one that was not seen", unseen, epoch, store.ErrUnavailable)
					b.expect("one that is not there", someToken, epoch, store.ErrUnavailable)
					time.Sleep(access.OutageUpTo - time.Since(seen))
					b.expect("five minutes on", token, epoch, store.ErrUnavailable)

					b.records.set(false, false)
					time.Sleep(access.RevokedWithin)
					b.expect("revoked in the outage", token, epoch, access.ErrUnauthenticated)
					b.expect("not revoked", unseen, epoch, nil)
				})
			})
		}
	}
}

// One that was revoked in an outage is refused 5 s after its end, whether it is used meanwhile or not.
func TestEndOfAnOutage(t *testing.T) {
	for name, c := range map[string]struct {
		fails, hangs, used bool
		every              time.Duration
	}{
		"fails, used often":  {fails: true, used: true, every: 50 * time.Millisecond},
		"fails, used rarely": {fails: true, used: true, every: 4 * time.Second},
		"fails, then unused": {fails: true, every: 50 * time.Millisecond},
		"hangs, used often":  {hangs: true, used: true, every: 50 * time.Millisecond},
		"hangs, used rarely": {hangs: true, used: true, every: 4 * time.Second},
		"hangs, then unused": {hangs: true, every: 50 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				defer b.close()
				token, key := b.create(admin)
				b.expect("before", token, epoch, nil)
				b.records.set(c.fails, c.hangs)
				b.revoke(key.ID)
				for range 20 {
					time.Sleep(c.every)
					b.expect("in the outage", token, epoch, nil)
				}
				for range 100 { // until just before the end
					time.Sleep(100 * time.Millisecond)
					b.expect("in the outage", token, epoch, nil)
				}
				b.records.set(false, false)
				over := time.Now()
				for c.used && time.Since(over) < access.RevokedWithin {
					_, _ = b.keys.Authenticate(t.Context(), token, epoch)
					time.Sleep(min(c.every, access.RevokedWithin-time.Since(over)))
				}
				time.Sleep(access.RevokedWithin - time.Since(over))
				b.expect("5 s after the outage", token, epoch, access.ErrUnauthenticated)
			})
		})
	}
}

// A client that does not wait for the answer is not taken for an outage.
func TestImpatientClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.close()
		token, key := b.create(admin)
		b.expect("before", token, epoch, nil)
		b.revoke(key.ID)
		b.records.delay(500 * time.Millisecond)
		for range 100 {
			time.Sleep(access.RevokedWithin)
			impatient, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			if _, err := b.keys.Authenticate(impatient, token, epoch); !errors.Is(err, store.ErrUnavailable) {
				t.Errorf("the impatient client is answered %v", err)
			}
			cancel()
			b.expect("revoked", token, epoch, access.ErrUnauthenticated)
		}
	})
}

// A key that is used all the time costs one read in two seconds, and its requests wait for none of them.
func TestCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.close()
		token, _ := b.create(admin)
		b.expect("first", token, epoch, nil)
		b.records.counted()
		for range 6000 {
			time.Sleep(10 * time.Millisecond)
			asked := time.Now()
			b.expect("in use", token, epoch, nil)
			if took := time.Since(asked); took > 0 {
				t.Fatalf("it took %s", took)
			}
		}
		if reads, writes := b.records.counted(); reads > 30 || reads < 20 || writes > 1 {
			t.Errorf("a minute of use cost %d reads and %d writes, want one in two seconds, and at most one", reads, writes)
		}
	})
}

// Simultaneous requests with a key share one look-up.
func TestSharedLookUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.close()
		token, _ := b.create(admin)
		b.records.set(false, true)
		var group sync.WaitGroup
		for range 100 {
			group.Go(func() { b.expect("hangs", token, epoch, store.ErrUnavailable) })
		}
		group.Wait()
		if reads, _ := b.records.counted(); reads != 1 {
			t.Errorf("there were %d reads, want 1", reads)
		}
	})
}

// A replica that reads a key while it is rotated takes the new token all the same, whether or not it knew the key.
func TestRotatedDuringALookUp(t *testing.T) {
	for _, known := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t)
			defer b.close()
			old, key := b.create(admin)
			if known {
				b.expect("the old token", old, epoch, nil)
				time.Sleep(3 * time.Second)
			}
			b.records.delay(time.Second)
			go func() { _, _ = b.keys.Authenticate(t.Context(), old, epoch) }()
			time.Sleep(time.Millisecond) // the key has been read, and the answer is on its way
			token, _, err := b.other.Rotate(t.Context(), key.ID, 0, epoch)
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond)
			b.expect("the new token", token, epoch, nil)
		})
	}
}

// A replica that revokes a key during a look-up of it refuses the key from then on, whatever the look-up returns.
func TestRevokedDuringALookUp(t *testing.T) {
	for _, usedAfter := range []time.Duration{0, 1500 * time.Millisecond} { // before and after the answer has come
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t)
			defer b.close()
			token, key := b.create(admin)
			b.expect("before", token, epoch, nil)
			time.Sleep(3 * time.Second)
			b.records.delay(time.Second)
			b.expect("before", token, epoch, nil) // which has it looked up
			time.Sleep(time.Millisecond)          // it has been read, and the answer is on its way
			b.records.delay(0)
			if err := b.keys.Revoke(t.Context(), key.ID, epoch); err != nil {
				t.Fatal(err)
			}
			time.Sleep(usedAfter)
			for range 20 {
				b.expect("revoked", token, epoch, access.ErrUnauthenticated)
				time.Sleep(100 * time.Millisecond)
			}
		})
	}
}

// The last use is written to the hour, once for all replicas, and no request waits for that.
func TestLastUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.close()
		token, key := b.create(admin)
		used := func() time.Time {
			t.Helper()
			synctest.Wait()
			now, err := b.other.Key(t.Context(), key.ID)
			if err != nil {
				t.Fatal(err)
			}
			return now.LastUsed
		}
		if got := used(); !got.IsZero() {
			t.Errorf("before its use, it was last used at %s", got)
		}
		for hour := range 3 {
			b.records.counted()
			now := epoch.Add(time.Duration(hour) * time.Hour)
			for minute := range 30 {
				b.expect("in use", token, now.Add(time.Duration(minute)*time.Minute-30*time.Minute), nil)
				time.Sleep(10 * time.Second)
			}
			if got, want := used(), now.Truncate(time.Hour); !got.Equal(want) {
				t.Errorf("it was last used at %s, want %s", got, want)
			}
			if _, writes := b.records.counted(); writes != 1 {
				t.Errorf("an hour cost %d writes, want 1", writes)
			}
		}
		// A store that takes no writes is tried again, at the next use.
		b.records.refuseWrites(true)
		later := epoch.Add(5 * time.Hour)
		b.expect("in use", token, later, nil)
		b.records.counted()
		for range 50 {
			time.Sleep(time.Second)
			b.expect("in use", token, later, nil)
		}
		if _, writes := b.records.counted(); writes > 1 {
			t.Errorf("a store that takes no writes was asked %d times in a minute", writes)
		}
		if got := used(); got.Equal(later.Truncate(time.Hour)) {
			t.Errorf("it was last used at %s, which nobody could write", got)
		}
		b.records.refuseWrites(false)
		time.Sleep(time.Minute)
		b.expect("in use", token, later, nil)
		if got, want := used(), later.Truncate(time.Hour); !got.Equal(want) {
			t.Errorf("it was last used at %s, want %s", got, want)
		}
	})
}

// Writing the last use undoes nothing: a key that was revoked or rotated meanwhile stays so.
func TestLastUseUndoesNothing(t *testing.T) {
	for _, revoked := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t)
			defer b.close()
			token, key := b.create(admin)
			b.expect("looked up", token, epoch.Add(-24*time.Hour), nil)
			time.Sleep(time.Minute)
			b.records.delayWrites(time.Second)
			b.expect("in use", token, epoch, nil) // which is written in a second
			next := ""
			if revoked {
				b.revoke(key.ID)
			} else {
				var err error
				if next, _, err = b.other.Rotate(t.Context(), key.ID, 0, epoch); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(time.Minute)
			b.expect("the token of before", token, epoch, access.ErrUnauthenticated)
			now, err := b.other.Key(t.Context(), key.ID)
			if revoked && !errors.Is(err, store.ErrNotFound) {
				t.Errorf("the revoked key is there again: %+v, %v", now, err)
			}
			if !revoked {
				b.expect("the token of after", next, epoch, nil)
			}
		})
	}
}

// A hundred thousand keys are distinguished, and each use costs one read.
func TestManyKeys(t *testing.T) {
	b := newBench(t)
	tokens := make(map[string]string)
	for range 20 {
		token, key := b.create(admin)
		tokens[token] = key.ID
	}
	some, err := b.records.Store.Records(t.Context(), store.RecordFilter{Collection: "keys", Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	var others []store.RecordChange
	for i := range 100_000 {
		id := fmt.Sprintf("%012d", i)
		others = append(others, store.RecordChange{Collection: "keys", Key: id, Version: job.Revision(id), Body: some[0].Body})
	}
	if err := errors.Join(b.records.Store.WriteRecords(t.Context(), others)...); err != nil {
		t.Fatal(err)
	}
	for token, id := range tokens {
		got, err := b.keys.Authenticate(t.Context(), token, epoch)
		if err != nil || got.ID != id {
			t.Errorf("the token of %s is of %s, %v", id, got.ID, err)
		}
	}
	if reads, _ := b.records.counted(); reads != len(tokens) {
		t.Errorf("%d keys cost %d reads", len(tokens), reads)
	}
}
