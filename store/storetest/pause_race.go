package storetest

import (
	"strconv"
	"sync"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// testPauseRace: a job is paused and resumed repeatedly while others claim. No paused occurrence is claimed, and in the
// end each occurrence was claimed once.
func testPauseRace(f *fixture) {
	const jobs, each, claimers, rounds = 3, 30, 2, 10
	handles := []store.Store{f.handle(), f.handle()}
	for i := range jobs {
		var after []time.Duration
		for k := range each {
			after = append(after, time.Duration(k)*time.Millisecond)
		}
		f.putOn(handles[0], newPut(name(strconv.Itoa(i)), epoch, after...))
	}
	now := epoch.Add(time.Minute)
	claim := func(s store.Store) store.Claim {
		claim, err := s.Claim(f.Context(), claimParams(now, 7))
		if err != nil {
			f.Errorf("claim: %v", err)
		}
		return claim
	}
	claimed := make([][]store.Claimed, claimers+1)
	toggled := make(chan struct{})
	var group sync.WaitGroup
	for i := range claimers {
		group.Go(func() {
			for {
				claimed[i] = append(claimed[i], claim(handles[i%2]).Occurrences...)
				select {
				case <-toggled:
					return
				default:
				}
			}
		})
	}
	group.Go(func() {
		defer close(toggled)
		for i := range rounds {
			n, s := name(strconv.Itoa(i%jobs)), handles[i%2]
			if err := s.Pause(f.Context(), n, job.NewRevision(now), now); err != nil {
				f.Errorf("pause: %v", err)
			}
			for _, c := range claim(s).Occurrences {
				if c.Name == n {
					f.Errorf("an occurrence of %s was claimed after it was paused", n)
				}
				claimed[claimers] = append(claimed[claimers], c)
			}
			if err := s.Resume(f.Context(), n, job.NewRevision(now), now); err != nil {
				f.Errorf("resume: %v", err)
			}
		}
	})
	group.Wait()
	for more := true; more; {
		rest := claim(handles[0])
		claimed[0], more = append(claimed[0], rest.Occurrences...), rest.More()
	}
	seen := map[job.ID]int{}
	for _, own := range claimed {
		for _, c := range own {
			seen[c.ID]++
			expect(f, "attempt", c.Attempt, 1)
		}
	}
	expect(f, "distinct occurrences claimed", len(seen), jobs*each)
	for id, n := range seen {
		expect(f, "claims of "+id.String(), n, 1)
	}
}

// testResumeRace: an occurrence that a claim is putting back while its job is resumed is due at once, not a lease
// later.
func testResumeRace(f *fixture) {
	handles := []store.Store{f.handle(), f.handle()}
	claim := func(s store.Store) (all []store.Claimed) {
		for more := true; more; {
			claim, err := s.Claim(f.Context(), claimParams(epoch, 10))
			if err != nil {
				f.Errorf("claim: %v", err)
			}
			all, more = append(all, claim.Occurrences...), claim.More()
		}
		return all
	}
	for i := range 25 {
		n := name(strconv.Itoa(i))
		f.putOn(handles[0], newPut(n, epoch, 0))
		f.must(handles[0].Pause(f.Context(), n, job.NewRevision(epoch), epoch))
		var claimed []store.Claimed
		var resumeErr error
		var group sync.WaitGroup
		group.Go(func() { claimed = claim(handles[0]) })
		group.Go(func() { resumeErr = handles[1].Resume(f.Context(), n, job.NewRevision(epoch), epoch) })
		group.Wait()
		f.must(resumeErr)
		claimed = append(claimed, claim(handles[0])...)
		if len(claimed) != 1 || claimed[0].Name != n || claimed[0].Attempt != 1 {
			f.Fatalf("round %d claimed %d occurrences, want one of %s at its first attempt", i, len(claimed), n)
		}
	}
}
