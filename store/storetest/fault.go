package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

const startTogether = "replicas start side by side"

var faultTests = []namedTest{
	{startTogether, testOpenTogether},
	{"acknowledged jobs survive a close", testReopen},
	{"an ended context changes nothing", testEndedContext},
	{"the store's clock", testNow},
}

func testOpenTogether(f *fixture) {
	const replicas = 6
	handles := make([]store.Store, replicas)
	var group sync.WaitGroup
	for i := range handles {
		group.Go(func() {
			s, err := f.open()
			if err != nil {
				f.Errorf("open: %v", err)
				return
			}
			handles[i] = s
			for k := range 3 {
				result := s.Put(f.Context(), []store.Put{newPut(name(fmt.Sprintf("k%d-%d", i, k)), epoch, 0)})[0]
				if result.Err != nil {
					f.Errorf("put: %v", result.Err)
				}
			}
		})
	}
	group.Wait()
	expect(f, "claimed", len(f.claim(epoch, 100)), replicas*3)
	for _, s := range handles {
		if s != nil {
			f.must(s.Close())
		}
	}
}

func testReopen(f *fixture) {
	first, err := f.open()
	f.must(err)
	f.putOn(first, newPut(name("k"), epoch, 0, time.Hour))
	claim, err := first.Claim(f.Context(), claimParams(epoch, 1))
	f.must(err)
	f.must(first.Close())

	pending := f.pending(name("k"))
	expect(f, "pending", len(pending), 2)
	expect(f, "held through the close", pending[0].Token, claim.Occurrences[0].Token)
	expect(f, "claimed after the lease", f.claimOne(epoch.Add(lease)).Reclaimed, true)
}

func testEndedContext(f *fixture) {
	f.put(newPut(name("k"), epoch, 0))
	s := f.store()
	ended, cancel := context.WithCancel(f.Context())
	cancel()
	held := f.claimOne(epoch)
	before := f.job(name("k"))
	advance, _ := f.claimedAdvance(name("recurring"))
	recurring := f.job(name("recurring"))

	result := s.Put(ended, []store.Put{newPut(name("new"), epoch, 0)})[0]
	_, claimErr := s.Claim(ended, claimParams(epoch.Add(lease), 1))
	_, cancelErr := s.Cancel(ended, []job.Name{name("k")}, store.Asked{Now: epoch})
	_, claimJobsErr := s.ClaimJobs(ended, store.ClaimJobsParams{Now: epoch.Add(time.Hour), Lease: lease, Limit: 1})
	for what, err := range map[string]error{
		"put": result.Err, "claim": claimErr, "cancel": cancelErr,
		"settle":  s.Settle(ended, []store.Settlement{settlement(held, store.Ack)}),
		"amend":   s.Amend(ended, amendment(before.Job, before.Version, epoch)),
		"pause":   s.Pause(ended, name("k"), job.NewRevision(epoch), epoch),
		"resume":  s.Resume(ended, name("k"), job.NewRevision(epoch), epoch),
		"trigger": s.Trigger(ended, trigger(name("k"), epoch, 1)), "claim jobs": claimJobsErr,
		"advance": s.Advance(ended, []store.Advance{advance}),
	} {
		expect(f, what+" is unavailable", errors.Is(err, store.ErrUnavailable), true)
	}
	_, err := store.ReadJob(f.Context(), s, name("new"))
	expect(f, "a put with an ended context leaves no job", errors.Is(err, store.ErrNotFound), true)
	pending := f.pending(name("k"))
	expect(f, "pending", len(pending), 1)
	expect(f, "token", pending[0].Token, held.Token)
	expectSame(f, "the job", f.job(name("k")), before)
	expectSame(f, "the one that recurs", f.job(name("recurring")), recurring)
}

func testNow(f *fixture) {
	now, err := f.store().Now(f.Context())
	f.must(err)
	if off := time.Since(now); off < -time.Hour || off > time.Hour {
		f.Errorf("the store's clock is off by %s on this machine", off)
	}
}
