package storetest

import (
	"bytes"
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

var putTests = []namedTest{
	{"put keeps everything", testPutKeeps},
	{"put keeps odd keys and payloads", testPutOdd},
	{"put keeps times to the millisecond", testPutTimes},
	{"put replaces", testPutReplaces},
	{"put replaces held occurrences", testPutReplacesHeld},
	{"put without occurrences", testPutEmpty},
	{"put conditions", testPutConditions},
	{"put many", testPutMany},
	{"put separates tenants", testPutTenants},
	{"racing puts leave one whole", testPutRace},
	{"put that is due at once is claimed once", testPutClaimRace},
}

func testPutKeeps(f *fixture) {
	p := newPut(name("k"), epoch, time.Minute, 2*time.Minute)
	p.Job.Options.Retry = job.Retry{MaxAttempts: 7, Initial: job.Duration(time.Second), Factor: 1.5,
		Max: job.Duration(time.Hour)}
	p.Job.Options.Trace = traced
	p.Job.ExpiresAt = epoch.Add(24 * time.Hour)
	result := f.put(p)
	expect(f, "replaced", result.Replaced, "")

	got := f.job(name("k"))
	expect(f, "name", got.Name, p.Job.Name)
	expect(f, "revision", got.Revision, p.Job.Revision)
	expect(f, "callback type", got.Callback.Type, p.Job.Callback.Type)
	expect(f, "callback data", string(got.Callback.Data), string(p.Job.Callback.Data))
	expectOptions(f, "options", got.Options, p.Job.Options)
	expect(f, "version", got.Version, p.Job.Version)
	expect(f, "not paused", got.PausedAt.IsZero(), true)
	expect(f, "nothing to expand", got.Cursor.IsZero() && got.ExpandAt.IsZero(), true)
	expect(f, "missed", got.Missed, 0)
	expect(f, "created", got.CreatedAt, p.Job.CreatedAt)
	expect(f, "updated", got.UpdatedAt, p.Job.UpdatedAt)
	expect(f, "expires", got.ExpiresAt, p.Job.ExpiresAt)
	expect(f, "live", got.Live(), true)
	f.expectTimes("schedule", timestamps(got.Schedule.Instants, func(t time.Time) time.Time { return t }),
		epoch.Add(time.Minute), epoch.Add(2*time.Minute))

	pending := f.pending(name("k"))
	if len(pending) != 2 {
		f.Fatalf("%d occurrences are pending, want 2", len(pending))
	}
	first := pending[0]
	expect(f, "occurrence id", first.ID, p.Occurrences[0].ID)
	expect(f, "occurrence name", first.Name, p.Job.Name)
	expect(f, "occurrence revision", first.Revision, p.Job.Revision)
	expect(f, "timestamp", first.Timestamp, epoch.Add(time.Minute))
	expect(f, "due", first.DueAt, epoch.Add(time.Minute))
	expect(f, "attempt", first.Attempt, 0)
	expect(f, "held", first.Held(epoch), false)
	expect(f, "never claimed", first.ScheduledAt.IsZero(), true)
	expect(f, "own", first.Own, nil)

	_, err := store.ReadJob(f.Context(), f.store(), name("other"))
	expect(f, "an unknown job is not found", errors.Is(err, store.ErrNotFound), true)
}

// oddKeys are keys that have broken stores and query builders.
var oddKeys = []string{
	"a", "a+b/c", "%", "%25", ".", "..", "batch", "$where", "a.b", "$", "{}", "*", "?", "[a]", "a_b", `a\b`, `"`,
	"'; DROP TABLE jobs; --", " ", " leading", "trailing ", "ключ", "鍵", "🔔", "\u00e9", "e\u0301", "A", "\u2028",
	"\U0010FFFF", "{tag}", ":", "a:b",
	"0", "null", strings.Repeat("k", 255), strings.Repeat("🔔", 63),
}

// oddPayloads are callback data whose bytes must be returned unchanged.
var oddPayloads = []string{
	`{"payload":12345678901234567890123456789}`, `{"z":1,"a":2,"payload":{"b":1,"a":2}}`,
	`{ "payload" :  [ 1.0, 1e2, -0 ] }`,
	"{\n\t\"payload\": \"<&>\u2028\\u0000\\/\"}", `{"payload":null}`, `{"$set":{"a.b":1}}`, `{"payload":"🔔"}`, `""`,
	`{"payload":"` + strings.Repeat("x", 200_000) + `"}`,
}

func testPutOdd(f *fixture) {
	payloadOf := map[string]string{}
	for i, key := range oddKeys {
		p := newPut(name(key), epoch, 0)
		payloadOf[key] = oddPayloads[i%len(oddPayloads)]
		p.Job.Callback.Data = []byte(payloadOf[key])
		f.put(p)
	}
	for _, key := range oddKeys {
		got := f.job(name(key))
		expect(f, "key", got.Key, key)
		if string(got.Callback.Data) != payloadOf[key] {
			f.Errorf("callback data of %q changed: %.60s", key, got.Callback.Data)
		}
		expect(f, "pending of "+strconv.Quote(key), len(f.pending(name(key))), 1)
	}
	claimed := f.claim(epoch, len(oddKeys)+1)
	expect(f, "claimed", len(claimed), len(oddKeys))
	for _, c := range claimed {
		if string(c.Callback.Data) != payloadOf[c.Name.Key] {
			f.Errorf("claimed callback data of %q changed: %.60s", c.Name.Key, c.Callback.Data)
		}
	}
}

func testPutTimes(f *fixture) {
	instants := []time.Time{
		time.UnixMilli(0).UTC(),
		time.UnixMilli(1).UTC(),
		time.Date(2026, 3, 1, 11, 59, 59, 999e6, time.UTC),
		time.Date(9999, 12, 31, 23, 59, 59, 999e6, time.UTC),
	}
	p := newPut(name("k"), epoch)
	p.Job.Schedule.Instants = instants
	f.put(begin(p.Job, epoch))
	f.expectTimes("pending", timestamps(f.pending(name("k")), occurrenceTime), instants...)
	f.expectTimes("due", timestamps(f.pending(name("k")), func(o job.Occurrence) time.Time { return o.DueAt }),
		instants...)
	f.expectTimes("schedule", timestamps(f.job(name("k")).Schedule.Instants, func(t time.Time) time.Time { return t }),
		instants...)

	expect(f, "next due", f.nextDue(), instants[0])
	expect(f, "claimed one millisecond before the instant", len(f.claim(instants[2].Add(-time.Millisecond), 10)), 2)
	expect(f, "claimed at the instant", f.claimOne(instants[2]).Timestamp, instants[2])
}

func testPutReplaces(f *fixture) {
	first := newPut(name("k"), epoch, time.Hour, 2*time.Hour)
	f.put(first)
	later := epoch.Add(time.Minute)
	second := newPut(name("k"), later, 3*time.Hour)
	second.Job.Callback = job.Callback{Type: "rabbitmq", Data: []byte(`{"queue":"q","payload":2}`)}
	result := f.put(second)
	expect(f, "replaced", result.Replaced, first.Job.Revision)
	expect(f, "in flight", result.InFlight, 0)

	got := f.job(name("k"))
	expect(f, "revision", got.Revision, second.Job.Revision)
	expect(f, "version", got.Version, second.Job.Version)
	expect(f, "callback type", got.Callback.Type, "rabbitmq")
	expect(f, "created", got.CreatedAt, epoch)
	expect(f, "updated", got.UpdatedAt, later)
	expect(f, "expires", got.ExpiresAt, later.Add(3*time.Hour))
	f.expectTimes("pending", timestamps(f.pending(name("k")), occurrenceTime), later.Add(3*time.Hour))

	claimed := f.claimOne(epoch.Add(24 * time.Hour))
	expect(f, "claimed", claimed.Timestamp, later.Add(3*time.Hour))
	expect(f, "with the new callback", string(claimed.Callback.Data), `{"queue":"q","payload":2}`)
}

func testPutReplacesHeld(f *fixture) {
	f.put(newPut(name("k"), epoch, 0, time.Hour))
	held := f.claimOne(epoch)
	result := f.put(newPut(name("k"), epoch.Add(time.Second), 0))
	expect(f, "in flight", result.InFlight, 1)

	f.settle(settlement(held, store.Retry)) // too late: it was replaced
	claimed := f.claim(epoch.Add(24*time.Hour), 10)
	f.expectTimes("claimed", timestamps(claimed, claimedTime), epoch.Add(time.Second))

	// A claim whose lease has run out is no longer held.
	f.put(newPut(name("stale"), epoch, 0))
	f.claim(epoch, 10)
	expect(f, "in flight after the lease", f.put(newPut(name("stale"), epoch.Add(lease), time.Hour)).InFlight, 0)
}

func testPutEmpty(f *fixture) {
	f.put(newPut(name("k"), epoch, time.Hour))
	f.put(newPut(name("k"), epoch))
	expect(f, "live", f.job(name("k")).Live(), false)
	expect(f, "pending", len(f.pending(name("k"))), 0)
	expect(f, "next due", f.nextDue().IsZero(), true)
	expect(f, "claimed", len(f.claim(epoch.Add(48*time.Hour), 10)), 0)
}

func testPutConditions(f *fixture) {
	first := newPut(name("there"), epoch, time.Hour)
	f.put(first)
	for _, c := range []struct {
		name string
		key  string
		cond store.Condition
		ok   bool
	}{
		{"absent, of one that exists", "there", store.Condition{Absent: true}, false},
		{"absent, of none", "new1", store.Condition{Absent: true}, true},
		{"present, of none", "new2", store.Condition{Present: true}, false},
		{"version, of none", "new3", store.Condition{Versions: []job.Revision{first.Job.Revision}}, false},
		{"another version", "there", store.Condition{Versions: []job.Revision{job.NewRevision(epoch)}}, false},
		{"one of two versions", "there", store.Condition{Versions: []job.Revision{job.NewRevision(epoch),
			first.Job.Revision}}, true},
		{"a version that was replaced", "there", store.Condition{Versions: []job.Revision{first.Job.Revision}}, false},
		{"present, of one that exists", "there", store.Condition{Present: true}, true},
	} {
		before, beforeErr := store.ReadJob(f.Context(), f.store(), name(c.key))
		p := newPut(name(c.key), epoch, 2*time.Hour)
		p.If = c.cond
		result := f.store().Put(f.Context(), []store.Put{p})[0]
		if c.ok {
			if result.Err != nil {
				f.Errorf("%s: %v", c.name, result.Err)
			}
			expect(f, c.name+": replaced", result.Replaced, before.Revision)
			continue
		}
		expect(f, c.name+": precondition failed", errors.Is(result.Err, store.ErrPrecondition), true)
		after, afterErr := store.ReadJob(f.Context(), f.store(), name(c.key))
		expect(f, c.name+": revision", after.Revision, before.Revision)
		expect(f, c.name+": exists", afterErr == nil, beforeErr == nil)
		expect(f, c.name+": pending", len(f.pending(name(c.key))), map[bool]int{true: 1}[beforeErr == nil])
	}
	// The failed puts have left no occurrence that could fire.
	f.expectTimes("claimed", timestamps(f.claim(epoch.Add(24*time.Hour), 100), claimedTime), epoch.Add(2*time.Hour),
		epoch.Add(2*time.Hour))
}

func testPutMany(f *fixture) {
	f.put(newPut(name("old"), epoch, time.Hour))
	var puts []store.Put
	for i := range 60 {
		puts = append(puts, newPut(name("many-"+strconv.Itoa(i)), epoch, time.Duration(i)*time.Minute))
	}
	failing := newPut(name("old"), epoch, 2*time.Hour)
	failing.If = store.Condition{Absent: true}
	twice := newPut(name("many-7"), epoch, 5*time.Hour)
	again := newPut(name("many-7"), epoch, 6*time.Hour)
	puts = append(puts, failing, twice, again, newPut(name("old"), epoch, 3*time.Hour))

	results := f.store().Put(f.Context(), puts)
	expect(f, "results", len(results), len(puts))
	for i, r := range results {
		switch {
		case i == 60:
			expect(f, "the failing one", errors.Is(r.Err, store.ErrPrecondition), true)
		case r.Err != nil:
			f.Errorf("put %d: %v", i, r.Err)
		case i == 61:
			expect(f, "replaced by the second of one name", r.Replaced, puts[7].Job.Revision)
		case i == 62:
			expect(f, "replaced by the third of one name", r.Replaced, twice.Job.Revision)
		}
	}
	expect(f, "the last of one name", f.job(name("many-7")).Revision, again.Job.Revision)
	f.expectTimes("its occurrences", timestamps(f.pending(name("many-7")), occurrenceTime), epoch.Add(6*time.Hour))
	f.expectTimes("the replaced one's", timestamps(f.pending(name("old")), occurrenceTime), epoch.Add(3*time.Hour))
	for _, i := range []int{0, 30, 59} {
		f.expectTimes("occurrences", timestamps(f.pending(puts[i].Job.Name), occurrenceTime),
			epoch.Add(time.Duration(i)*time.Minute))
	}
	expect(f, "results of nothing", len(f.store().Put(f.Context(), nil)), 0)
}

func testPutTenants(f *fixture) {
	here, there := job.Name{Tenant: "a", Key: "bc"}, job.Name{Tenant: "ab", Key: "c"}
	same := job.Name{Tenant: "ab", Key: "bc"}
	for _, n := range []job.Name{here, there, same} {
		f.put(newPut(n, epoch, time.Hour))
	}
	cancelled, err := f.store().Cancel(f.Context(), []job.Name{here}, store.Asked{Now: epoch})
	f.must(err)
	expect(f, "cancelled", cancelled[0].Cancelled, 1)
	for _, n := range []job.Name{there, same} {
		expect(f, "left of "+n.String(), len(f.pending(n)), 1)
	}
	page, err := f.store().Jobs(f.Context(), store.JobFilter{Tenant: "ab", Limit: 10})
	f.must(err)
	expect(f, "jobs of a tenant", keys(page), `["bc" "c"]`)
}

// testPutRace: of racing puts of one name, one remains, complete, and each replaces exactly the previous one.
func testPutRace(f *fixture) {
	const putters = 12
	handles := []store.Store{f.handle(), f.handle()}
	puts := make([]store.Put, putters)
	results := make([]store.PutResult, putters)
	var group sync.WaitGroup
	for i := range puts {
		base := time.Duration(i+1) * time.Hour
		puts[i] = newPut(name("k"), epoch, base, base+time.Minute, base+2*time.Minute)
		group.Go(func() {
			ctx, cancel := context.WithTimeout(f.Context(), store.Within)
			defer cancel()
			results[i] = handles[i%2].Put(ctx, []store.Put{puts[i]})[0]
		})
	}
	group.Wait()

	winner := f.job(name("k"))
	replaced := map[job.Revision]int{}
	for i, r := range results {
		f.must(r.Err)
		replaced[r.Replaced]++
		if puts[i].Job.Revision == winner.Revision {
			want := timestamps(puts[i].Occurrences, occurrenceTime)
			f.expectTimes("pending of the winner", timestamps(f.pending(name("k")), occurrenceTime),
				puts[i].Job.Schedule.Instants...)
			claimed := f.claim(epoch.Add(100*time.Hour), 200)
			got := timestamps(claimed, claimedTime)
			expect(f, "all that can be claimed", strings.Join(got, " "), strings.Join(want, " "))
		}
	}
	expect(f, "created", replaced[""], 1)
	expect(f, "revisions replaced", len(replaced), putters)
	expect(f, "the winner replaced", replaced[winner.Revision], 0)
}

// testPutClaimRace: an occurrence that is due at once, and put while others claim, is claimed exactly once, with the
// callback of its own revision.
func testPutClaimRace(f *fixture) {
	const rounds = 25
	putting, claiming := f.handle(), f.handle()
	done := make(chan struct{})
	var group sync.WaitGroup
	var claimed []store.Claimed
	group.Go(func() {
		defer close(done)
		for i := range rounds {
			now := epoch.Add(time.Duration(i) * time.Millisecond)
			p := newPut(name("k"+strconv.Itoa(i%5)), now, 0)
			p.Job.Callback.Data = []byte(p.Job.Revision)
			f.putOn(putting, p)
		}
	})
	group.Go(func() {
		// An occurrence that was put back is due again soon after its revision's age; within this hour an orphan never
		// is.
		for now, last := epoch.Add(time.Second), false; ; now = now.Add(20 * time.Millisecond) {
			params := claimParams(now, 10)
			params.Lease = time.Hour
			claim, err := claiming.Claim(f.Context(), params)
			if err != nil {
				f.Errorf("claim: %v", err)
				return
			}
			claimed = append(claimed, claim.Occurrences...)
			if last && now.After(epoch.Add(time.Minute)) {
				return
			}
			select {
			case <-done:
				if !last {
					now, last = now.Add(30*time.Second), true
				} else {
					now = now.Add(5 * time.Second)
				}
			default:
			}
		}
	})
	group.Wait()

	seen := map[job.ID]bool{}
	for _, c := range claimed {
		if seen[c.ID] {
			f.Errorf("%s was claimed twice", c.ID)
		}
		seen[c.ID] = true
		if !bytes.Equal(c.Callback.Data, []byte(c.Revision)) {
			f.Errorf("an occurrence of %s came with the callback of %s", c.Revision, c.Callback.Data)
		}
	}
	for i := range 5 { // a name's last revision can't have been replaced
		n := name("k" + strconv.Itoa(i))
		for _, o := range f.pending(n) {
			expect(f, "claimed of "+n.Key, seen[o.ID], true)
		}
		expect(f, "pending of "+n.Key, len(f.pending(n)), 1)
	}
}
