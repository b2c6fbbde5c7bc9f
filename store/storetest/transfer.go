package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

var transferTests = []namedTest{
	{"an export is whole", testExport},
	{"an export of an empty store", testExportEmpty},
	{"an export leaves out occurrences that never fire", testExportBroken},
	{"an export while others insert and delete", testExportMeanwhile},
	{"an import is the same store", testImport},
	{"an import again changes nothing", testImportAgain},
	{"an import leaves changed documents", testImportChanged},
	{"an import of an occurrence buried during the export", testImportBuried},
	{"an import of another job is refused", testImportConflict},
	{"a transfer with an ended context", testTransferEnded},
}

func testExport(f *fixture) {
	f.fill()
	want := f.look()
	for _, limit := range []int{1, 3, 1000} {
		records := f.export(limit)
		there, occurrences := map[job.Name]bool{}, 0
		for _, r := range records {
			if r.Job != nil {
				there[r.Job.Name] = true
				expect(f, "the occurrences before a job", occurrences, 0)
				continue
			}
			if occurrences++; r.Occurrence.Revision != "" && !there[r.Occurrence.Name] {
				f.Errorf("an occurrence of %s comes before its job", r.Occurrence.Name)
			}
		}
		jobs, pendingAndDead := sorted(records)
		var wantJobs []job.Job
		for _, status := range want.jobs {
			wantJobs = append(wantJobs, status.Job)
		}
		expectEach(f, "job", jobs, wantJobs)

		var pending, dead []job.Occurrence
		for _, o := range pendingAndDead {
			expect(f, "an occurrence has a callback if it has no revision", o.Own != nil, o.Revision == "")
			if !o.FailedAt.IsZero() {
				dead = append(dead, o)
				continue
			}
			if o.Own != nil && o.Timestamp != epoch {
				expectSame(f, "the triggered occurrence", *o.Own, *trigger(o.Name, epoch, 1).Own)
			}
			o.Own = nil
			pending = append(pending, o)
		}
		expectEach(f, "pending", pending, want.pending)
		expectEach(f, "dead letter", dead, want.dead)
	}
}

func testExportEmpty(f *fixture) {
	expect(f, "records", len(f.export(10)), 0)
	f.put(newPut(name("k"), epoch, 0))
	f.cancel(name("k"))
	expect(f, "records after a cancel", len(f.export(10)), 0)
	expect(f, "imported of none", f.importAll(nil, 1), 0)
	n, err := f.store().Import(f.Context(), nil)
	f.must(err)
	expect(f, "imported of no records", n, 0)
}

// testExportBroken: whatever interrupted calls leave behind, each exported occurrence comes after its job, has the
// job's revision, and is not beyond its cursor.
func testExportBroken(f *fixture) {
	s := f.handle()
	for i := range 8 {
		within := 100 * time.Microsecond << i
		n := name(fmt.Sprint("put", i))
		f.put(newPut(n, epoch, time.Minute, time.Hour))
		a, now := f.claimedAdvance(name(fmt.Sprint("tick", i)))
		ctx, cancel := context.WithTimeout(f.Context(), within)
		result := s.Put(ctx, []store.Put{newPut(n, epoch, time.Second, time.Minute, 3*time.Minute)})[0]
		cancel()
		if result.Err != nil && !errors.Is(result.Err, store.ErrUnavailable) {
			f.Errorf("put that breaks off: %v", result.Err)
		}
		j := f.job(a.Name).Job
		long, err := j.Expand(now, job.Expansion{Horizon: time.Hour / 4})
		f.must(err)
		a.Occurrences, a.Cursor, a.ExpandAt = long.Occurrences, long.Cursor, long.ExpandAt
		ctx, cancel = context.WithTimeout(f.Context(), within)
		if err := s.Advance(ctx, []store.Advance{a}); err != nil && !errors.Is(err, store.ErrUnavailable) {
			f.Errorf("advance that breaks off: %v", err)
		}
		cancel()
	}
	f.expectMatching(f.export(7))
}

// expectMatching expects each occurrence to come after its job, to have the job's revision, and not to be beyond its
// cursor.
func (f *fixture) expectMatching(records []store.Document) {
	f.Helper()
	jobs := map[job.Name]*job.Job{}
	for _, r := range records {
		if r.Job != nil {
			jobs[r.Job.Name] = r.Job
			continue
		}
		o := r.Occurrence
		if o.Revision == "" {
			continue
		}
		if j := jobs[o.Name]; j == nil || j.Revision != o.Revision {
			f.Errorf("an orphan of %s is exported", o.Name)
		} else if !j.Cursor.IsZero() && o.Timestamp.After(j.Cursor) {
			f.Errorf("an occurrence of %s is exported that lies %s beyond its cursor", o.Name, o.Timestamp.Sub(j.Cursor))
		}
	}
}

// testExportMeanwhile: a record that nobody changes during an export is in it exactly once, and no record is in it
// twice. An imported occurrence fires for its own job, or not at all.
func testExportMeanwhile(f *fixture) {
	const jobs = 12
	untouched := map[job.Name]bool{}
	for i := range jobs {
		n := name(fmt.Sprintf("k%02d", i))
		untouched[n] = i%3 == 0
		f.put(newPut(n, epoch, time.Minute, time.Hour))
	}
	f.put(newRecurring(name("tick"), epoch, "@every 10s"))
	var records []store.Document
	page := 0
	f.exportPages(4, func(part []store.Document) {
		records = append(records, part...)
		// Other jobs come, go and are replaced: before the place, behind it and everywhere.
		f.put(newPut(name(fmt.Sprintf("a%02d", page)), epoch, time.Minute))
		f.put(newPut(name(fmt.Sprintf("z%02d", page%4)), epoch, time.Minute))
		i := page % (jobs / 3) * 3
		f.cancel(name(fmt.Sprintf("k%02d", i+1)))
		f.put(newPut(name(fmt.Sprintf("k%02d", (i+7)%jobs)), epoch, time.Minute)) // perhaps a cancelled one
		f.put(newPut(name(fmt.Sprintf("k%02d", i+2)), epoch, time.Second, 2*time.Minute))
		if at := f.job(name("tick")).ExpandAt; page == 5 {
			j, token := f.claimJob(at)
			f.advance(advanceOf(j, token, at))
		}
		page++
	})
	if page < 8 {
		f.Fatalf("the export has %d pages: the test shows nothing", page)
	}
	named, ids := map[job.Name]int{}, map[job.ID]int{}
	occurrences := map[job.Name]int{}
	for _, r := range records {
		if r.Job != nil {
			named[r.Job.Name]++
			continue
		}
		ids[r.Occurrence.ID]++
		occurrences[r.Occurrence.Name]++
		if n := r.Occurrence.Name; untouched[n] && named[n] == 0 {
			f.Errorf("an occurrence of %s comes before its job", n)
		}
	}
	for n, times := range named {
		expect(f, "times that "+n.Key+" is exported", times, 1)
	}
	for id, times := range ids {
		expect(f, "times that "+id.String()+" is exported", times, 1)
	}
	for n, is := range untouched {
		if is {
			expect(f, "times that "+n.Key+" is exported", named[n], 1)
			expect(f, "exported occurrences of "+n.Key, occurrences[n], 2)
		}
	}

	g := f.another()
	g.importAll(records, 10)
	fired := map[job.Name]int{}
	ticked := map[job.ID]int{}
	for _, c := range g.drain(epoch) {
		fired[c.Name]++
		expect(f, "the revision that "+c.Name.Key+" fires by", c.Revision, g.job(c.Name).Revision)
		expect(f, "the callback that it fires with", string(c.Callback.Data), string(g.job(c.Name).Callback.Data))
		ticked[c.ID]++
	}
	now := epoch.Add(48 * time.Hour)
	j, token := g.claimJob(now)
	g.advance(advanceOf(j, token, now))
	for _, c := range g.drain(now) {
		expect(f, "times that a tick has fired before it is expanded", ticked[c.ID], 0)
	}
	for n, is := range untouched {
		if is {
			expect(f, "times that "+n.Key+" fires", fired[n], 2)
		}
	}
}

func testImport(f *fixture) {
	f.fill()
	records := f.export(3)
	g := f.another()
	expect(f, "inserted", g.importAll(records, 10), len(records))
	expectLook(f, "the other store", g.look(), f.look())
	expectLook(f, "the store itself", f.look(), g.look())
	jobs, occurrences := sorted(records)
	gotJobs, gotOccurrences := sorted(g.export(5))
	expectEach(f, "job", gotJobs, jobs)
	expectEach(f, "occurrence", gotOccurrences, occurrences)
}

func testImportAgain(f *fixture) {
	f.fill()
	records := f.export(50)
	g := f.another()
	half := len(records) / 2
	expect(f, "inserted of one half", g.importAll(records[:half], 7), half)
	expect(f, "inserted of all", g.importAll(records, 7), len(records)-half)
	before := g.look()
	expect(f, "inserted again", g.importAll(records, 20), 0)
	expect(f, "inserted again at once", g.importAll(records, len(records)), 0)
	expectLook(f, "after an import again", g.look(), before)
	expect(f, "inserted into the same store", f.importAll(records, 20), 0)
}

func testImportChanged(f *fixture) {
	f.fill()
	records := f.export(50)
	g := f.another()
	g.importAll(records, 20)
	now := epoch.Add(time.Minute)
	for _, c := range g.claim(now, 100) {
		if c.Name.Key == "due" || c.Name.Key == "redriven" {
			g.settle(settlement(c, store.Retry))
		}
	}
	claimed := g.claimJobs(now, 100)
	for _, j := range claimed.Jobs {
		g.advance(advanceOf(j, claimed.Token, now))
	}
	before := g.look()
	expect(f, "inserted", g.importAll(records, 20), 0)
	expectLook(f, "after an import again", g.look(), before)
}

// testImportBuried: an export may have an occurrence both in its form before the burial and as a dead letter. It is
// imported once, in the first of these forms.
func testImportBuried(f *fixture) {
	f.put(newPut(name("k"), epoch, 0, time.Second))
	before := f.export(10)
	for _, c := range f.claim(epoch, 10) {
		f.settle(settlement(c, store.Bury))
	}
	records := slices.Clone(before)
	for _, r := range f.export(10) {
		if o := r.Occurrence; o != nil && !o.FailedAt.IsZero() {
			records = append(records, r)
		}
	}
	expect(f, "records", len(records), 4)
	_, pending := sorted(before)
	for _, limit := range []int{len(records), 1} {
		g := f.another()
		expect(f, "inserted", g.importAll(records, limit), 3)
		expectEach(f, "pending", g.pending(name("k")), pending)
		expect(f, "dead letters", len(g.deadLetters(store.DeadLetterFilter{})), 0)
		expectFired(f, "in all", name("k"), g.drain(epoch), []time.Time{epoch, epoch.Add(time.Second)})
		expect(f, "jobs", len(g.look().jobs), 1)
	}
}

func testImportConflict(f *fixture) {
	n := name(`k/"é`)
	p := newPut(n, epoch, time.Hour)
	f.put(p)
	records := f.export(10)
	for _, c := range []struct {
		name  string
		other func(g *fixture)
	}{
		{"another revision", func(g *fixture) { g.put(newPut(n, epoch, time.Minute)) }},
		{"another version", func(g *fixture) {
			g.put(p)
			g.pause(n, epoch)
		}},
	} {
		g := f.another()
		c.other(g)
		g.put(newPut(name("beside"), epoch, time.Minute))
		before := g.look()
		inserted, err := g.store().Import(f.Context(), records)
		expect(f, c.name+" is a conflict", errors.Is(err, store.ErrConflict), true)
		expect(f, c.name+": inserted", inserted, 0)
		if err != nil && !strings.Contains(err.Error(), n.Key) {
			f.Errorf("%s: the error does not name the job: %v", c.name, err)
		}
		expectEach(f, c.name+": job", g.look().jobs, before.jobs)
		fired := g.drain(epoch)
		expect(f, c.name+": an instant of the other job fires", slices.ContainsFunc(fired, func(c store.Claimed) bool {
			return c.Name == n && c.Revision != g.job(n).Revision
		}), false)
	}
}

func testTransferEnded(f *fixture) {
	f.put(newPut(name("k"), epoch, 0))
	records := f.export(10)
	g := f.another()
	ended, cancel := context.WithCancel(f.Context())
	cancel()
	s := g.store()
	_, importErr := s.Import(ended, records)
	_, _, exportErr := s.Export(ended, "", 10)
	for what, err := range map[string]error{
		"import": importErr, "export": exportErr,
	} {
		expect(f, what+" is unavailable", errors.Is(err, store.ErrUnavailable), true)
	}
	expect(f, "records", len(g.export(10)), 0)
}
