package storetest

import (
	"fmt"
	"slices"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

var listTests = []namedTest{
	{"jobs are listed by prefix", testJobsPrefix},
	{"jobs are listed in pages", testJobsPages},
	{"a job is listed by its key, whole or not", testJobsKey},
	{"occurrences are listed in pages", testOccurrencePages},
	{"a job has its next instant", testNext},
}

func (f *fixture) jobs(filter store.JobFilter) []store.JobStatus {
	f.Helper()
	filter.Tenant = job.DefaultTenant
	if filter.Limit == 0 {
		filter.Limit = 1000
	}
	page, err := f.store().Jobs(f.Context(), filter)
	f.must(err)
	return page
}

func testJobsPrefix(f *fixture) {
	all := []string{"A", "a", "a%", "a%b", "a*", "a.b", "aXb", "a_", "b", "é", "🔔", "🔔x"}
	for i, key := range all {
		f.put(newPut(name(key), epoch, []time.Duration{time.Hour}[i%2:]...))
	}
	for _, c := range []struct{ prefix, after, want string }{
		{"", "", fmt.Sprintf("%q", all)},
		{"a", "", `["a" "a%" "a%b" "a*" "a.b" "aXb" "a_"]`},
		{"a", "a*", `["a.b" "aXb" "a_"]`},
		{"a%", "", `["a%" "a%b"]`},
		{"a.", "", `["a.b"]`},
		{"a_", "", `["a_"]`},
		{"🔔", "", `["🔔" "🔔x"]`},
		{"none", "", `[]`},
	} {
		expect(f, fmt.Sprintf("prefix %q after %q", c.prefix, c.after),
			keys(f.jobs(store.JobFilter{Prefix: c.prefix, After: c.after})), c.want)
	}
	for i, s := range f.jobs(store.JobFilter{}) {
		expect(f, "live "+s.Key, s.Live(), i%2 == 0)
		expect(f, "next of "+s.Key, s.Next, []time.Time{epoch.Add(time.Hour), {}}[i%2])
		expect(f, "type", s.Callback.Type, "http")
		expect(f, "created", s.CreatedAt, epoch)
	}
}

func testJobsKey(f *fixture) {
	for _, key := range []string{"a", "ab", "b"} {
		f.put(newPut(name(key), epoch, time.Hour, 2*time.Hour))
	}
	f.put(newPut(job.Name{Tenant: "other", Key: "c"}, epoch, time.Hour))
	for _, c := range []struct {
		filter store.JobFilter
		want   string
	}{
		{store.JobFilter{Key: "a"}, `["a"]`},
		{store.JobFilter{Key: "ab", After: "a"}, `["ab"]`},
		{store.JobFilter{Key: "a", After: "a"}, `[]`},
		{store.JobFilter{Key: "c"}, `[]`},
	} {
		for _, whole := range []bool{false, true} {
			c.filter.Whole = whole
			expect(f, fmt.Sprintf("%+v", c.filter), keys(f.jobs(c.filter)), c.want)
		}
	}
	for _, filter := range []store.JobFilter{{Key: "b"}, {Prefix: "b"}, {After: "ab"}} {
		brief := f.jobs(filter)[0]
		filter.Whole = true
		whole := f.jobs(filter)[0]
		expectSame(f, "the whole job", whole, f.job(name("b")))
		expect(f, "instants", len(whole.Schedule.Instants), 2)
		expect(f, "callback data are there", len(whole.Callback.Data) > 0, true)
		whole.Callback.Data, whole.Options, whole.Schedule = nil, job.Options{}, job.Schedule{}
		expectSame(f, "the job without its large fields", brief, whole)
	}
}

func testJobsPages(f *fixture) {
	for i := range 20 {
		f.put(newPut(name(fmt.Sprintf("k%02d", i)), epoch, time.Hour))
	}
	var seen []string
	for after := ""; ; {
		page := f.jobs(store.JobFilter{After: after, Limit: 3})
		if len(page) == 0 {
			break
		}
		for _, s := range page {
			seen = append(seen, s.Key)
		}
		after = seen[len(seen)-1]
		// Meanwhile jobs come, go and change, before the cursor and behind it.
		f.put(newPut(name(fmt.Sprintf("a%02d", len(seen))), epoch, time.Hour))
		f.put(newPut(name("k10"), epoch, time.Hour))
		f.cancel(name("k00"), name("k15"))
	}
	want := []string{}
	for i := range 20 {
		if i != 15 {
			want = append(want, fmt.Sprintf("k%02d", i))
		}
	}
	if !slices.Equal(seen, want) {
		f.Errorf("pages are %q, want %q", seen, want)
	}
}

// testNext: Next is the first pending instant of the job's revision, held or not, for one job and for jobs in a list.
func testNext(f *fixture) {
	minutes := make([]time.Duration, 30)
	for i := range minutes {
		minutes[i] = time.Duration(len(minutes)-i) * time.Minute
	}
	for _, key := range []string{"a", "b", "c", "d"} {
		f.put(newPut(name(key), epoch, minutes...)) // more than one scan finds
	}
	f.put(newPut(name("done"), epoch))
	f.put(newPut(name("one"), epoch, time.Hour))
	crontab := newRecurring(name("recurs"), epoch, "0 0 1 1 *")
	f.put(crontab)
	next := func(what, key string, want time.Time) {
		f.Helper()
		expect(f, "next of "+key+" "+what, f.job(name(key)).Next, want)
		for _, s := range f.jobs(store.JobFilter{}) {
			if s.Key == key {
				expect(f, "next of "+key+" in the list "+what, s.Next, want)
			}
		}
	}
	for _, key := range []string{"a", "b", "c", "d"} {
		next("at first", key, epoch.Add(time.Minute))
	}
	next("at first", "done", time.Time{})
	next("at first", "one", epoch.Add(time.Hour))
	next("at first", "recurs", crontab.Occurrences[0].Timestamp)

	f.trigger(trigger(name("done"), epoch, 1))
	next("with a trigger", "done", time.Time{})
	f.settle(settlement(f.claimOne(epoch), store.Ack))
	var settlements []store.Settlement
	for _, c := range f.claim(epoch.Add(time.Minute), 10) {
		next("held", c.Name.Key, epoch.Add(time.Minute))
		outcome := map[string]store.Outcome{"a": store.Ack, "b": store.Retry, "c": store.Bury, "d": store.Miss}[c.Name.Key]
		settlements = append(settlements, settlement(c, outcome))
	}
	f.settle(settlements...)
	for key, want := range map[string]time.Duration{"a": 2 * time.Minute, "b": time.Minute, "c": 2 * time.Minute,
		"d": 2 * time.Minute} {
		next("settled", key, epoch.Add(want))
	}
	f.pause(name("a"), epoch)
	next("paused", "a", epoch.Add(2*time.Minute))
	f.put(newPut(name("a"), epoch, 3*time.Hour))
	next("replaced", "a", epoch.Add(3*time.Hour))
}

func testOccurrencePages(f *fixture) {
	var after []time.Duration
	for i := range 25 {
		after = append(after, time.Duration(i)*time.Minute)
	}
	f.put(newPut(name("k"), epoch, after...))
	f.put(newPut(name("other"), epoch, time.Second))
	filter := store.OccurrenceFilter{Name: name("k"), Revision: f.job(name("k")).Revision, Limit: 10}
	_, uncounted, err := f.store().Occurrences(f.Context(), filter)
	f.must(err)
	expect(f, "total that was not asked for", uncounted, 0)
	filter.Count = true
	var seen []job.Occurrence
	for _, want := range []int{10, 10, 5, 0} {
		page, total, err := f.store().Occurrences(f.Context(), filter)
		f.must(err)
		expect(f, "total", total, 25)
		expect(f, "page", len(page), want)
		if want > 0 {
			filter.After = page[len(page)-1].ID
		}
		seen = append(seen, page...)
	}
	for i, o := range seen {
		expect(f, "in order", o.Timestamp, epoch.Add(after[i]))
	}
}
