package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

var recordTests = []namedTest{
	{"a record is written, replaced and deleted", testWriteRecord},
	{"records are written under conditions", testRecordConditions},
	{"a change of a record is repeated", testRepeatRecordChange},
	{"changes of one record in one call", testRecordChangesInOrder},
	{"many changes of records in one call", testManyRecordChanges},
	{"records have bounds", testRecordBounds},
	{"records are listed by the bytes of their keys", testListRecords},
	{"records are listed by keys", testListRecordsByKey},
	{"collections of records are apart", testRecordCollections},
	{"expired records are absent", testExpiredRecords},
	{"sweep removes expired records", testSweepRecords},
	{"racing creations of a record", testRaceToCreateRecord},
	{"racing changes of a version of a record", testRaceToChangeRecord},
	{"racing changes of a record lose none", testRecordCounter},
	{"racing writes of a record leave one whole", testRaceToWriteRecord},
	{"records are apart from jobs", testRecordsApart},
	{"records with an ended context", testRecordsEnded},
}

// collection is the collection of most tests.
const collection = "things"

// write returns a change that writes a record with a body, at the epoch.
func write(key, body string) store.RecordChange {
	return store.RecordChange{Collection: collection, Key: key, Version: job.NewRevision(epoch), Body: []byte(body),
		Now: epoch}
}

// remove returns a change that deletes a record, at the epoch.
func remove(key string) store.RecordChange {
	return store.RecordChange{Collection: collection, Key: key, Version: job.NewRevision(epoch), Now: epoch}
}

// until makes the record of a change expire.
func until(c store.RecordChange, expires time.Time) store.RecordChange {
	c.ExpiresAt = expires
	return c
}

// ifAbsent and ifVersion add a condition to a change.
func ifAbsent(c store.RecordChange) store.RecordChange {
	c.If = store.RecordCondition{Absent: true}
	return c
}

func ifVersion(c store.RecordChange, v job.Revision) store.RecordChange {
	c.If = store.RecordCondition{Version: v}
	return c
}

// at sets the time of a change.
func at(c store.RecordChange, now time.Time) store.RecordChange {
	c.Now = now
	return c
}

// written returns the record that a change writes.
func written(c store.RecordChange) store.Record {
	return store.Record{Key: c.Key, Version: c.Version, Body: c.Body, ExpiresAt: c.ExpiresAt}
}

// writeRecords makes changes, which must succeed.
func (f *fixture) writeRecords(changes ...store.RecordChange) {
	f.Helper()
	f.expectWrites("write", changes, make([]error, len(changes))...)
}

// expectWrites makes changes and compares their results.
func (f *fixture) expectWrites(what string, changes []store.RecordChange, want ...error) {
	f.Helper()
	got := f.store().WriteRecords(f.Context(), changes)
	if len(got) != len(want) {
		f.Fatalf("%s: %d answers for %d changes", what, len(got), len(want))
	}
	for i := range got {
		if !errors.Is(got[i], want[i]) {
			f.Errorf("%s: the answer to change %d of %q is %v, want %v", what, i, changes[i].Key, got[i], want[i])
		}
	}
}

// records lists a page through another handle. The filter's collection is that of most tests, and its time the epoch,
// unless they are set.
func (f *fixture) records(filter store.RecordFilter) []store.Record {
	f.Helper()
	if filter.Collection == "" {
		filter.Collection = collection
	}
	if filter.Now.IsZero() {
		filter.Now = epoch
	}
	if filter.Limit == 0 {
		filter.Limit = 1000
	}
	page, err := f.second().Records(f.Context(), filter)
	f.must(err)
	return page
}

// allRecords lists records in pages of a size, and expects all pages except the last to be full.
func (f *fixture) allRecords(filter store.RecordFilter, limit int) (all []store.Record) {
	f.Helper()
	for filter.Limit = limit; ; {
		page := f.records(filter)
		all = append(all, page...)
		if len(page) > limit || len(all) > 10_000 {
			f.Fatalf("%d records on a page of %d, %d in all", len(page), limit, len(all))
		}
		if len(page) < limit {
			return all
		}
		filter.After = page[len(page)-1].Key
	}
}

// expectRecords expects a collection to have the records of changes, in the order of their keys.
func (f *fixture) expectRecords(what string, changes ...store.RecordChange) {
	f.Helper()
	f.expectPage(what, f.records(store.RecordFilter{}), changes...)
}

func (f *fixture) expectPage(what string, page []store.Record, changes ...store.RecordChange) {
	f.Helper()
	if len(page) != len(changes) {
		f.Errorf("%s: there are %d records, %.300q, want %d", what, len(page), recordKeys(page), len(changes))
		return
	}
	for i, got := range page {
		want := written(changes[i])
		if got.Key != want.Key || got.Version != want.Version || !bytes.Equal(got.Body, want.Body) ||
			got.ExpiresAt != want.ExpiresAt {
			f.Errorf("%s: record %d:\n got %.200q %s %.80q %s\nwant %.200q %s %.80q %s", what, i,
				got.Key, got.Version, got.Body, got.ExpiresAt, want.Key, want.Version, want.Body, want.ExpiresAt)
		}
	}
}

func recordKeys(page []store.Record) []string {
	all := make([]string, len(page))
	for i, r := range page {
		all[i] = r.Key
	}
	return all
}

func testWriteRecord(f *fixture) {
	f.expectRecords("an empty store")
	first := write("k", `{"a":1}`)
	f.writeRecords(first)
	f.expectRecords("written", first)
	second := until(write("k", "\x00\xff\n \x7f"), epoch.Add(time.Hour))
	f.writeRecords(second)
	f.expectRecords("replaced", second)
	empty := write("k", "")
	f.writeRecords(empty)
	f.expectRecords("replaced by an empty one", empty)
	beside := write("j", "beside")
	f.writeRecords(beside)
	f.writeRecords(remove("k"))
	f.expectRecords("deleted", beside)
	f.writeRecords(remove("k"))
	f.expectRecords("deleted again", beside)
	again := write("k", "again")
	f.writeRecords(again)
	f.expectRecords("written again", beside, again)
	expect(f, "answers to no changes", len(f.store().WriteRecords(f.Context(), nil)), 0)
}

func testRecordConditions(f *fixture) {
	expired := until(write("expired", "1"), epoch.Add(-time.Millisecond))
	there := write("there", "1")
	other := job.NewRevision(epoch)
	failed, done := store.ErrPrecondition, error(nil)
	for _, c := range []struct {
		what   string
		change store.RecordChange
		want   error
		left   bool // the former records are left, and no others
	}{
		{"create where there is none", ifAbsent(write("none", "2")), done, false},
		{"create where there is one", ifAbsent(write("there", "2")), failed, true},
		{"create where one has expired", ifAbsent(write("expired", "2")), done, false},
		{"replace where there is none", ifVersion(write("none", "2"), other), failed, true},
		{"replace the version", ifVersion(write("there", "2"), there.Version), done, false},
		{"replace another version", ifVersion(write("there", "2"), other), failed, true},
		{"replace an expired record", ifVersion(write("expired", "2"), expired.Version), failed, true},
		{"write where there is none", write("none", "2"), done, false},
		{"write where there is one", write("there", "2"), done, false},
		{"write where one has expired", write("expired", "2"), done, false},
		{"delete the version", ifVersion(remove("there"), there.Version), done, false},
		{"delete another version", ifVersion(remove("there"), other), failed, true},
		{"delete if there is none, but there is", ifAbsent(remove("there")), failed, true},
		{"delete none if there is none", ifAbsent(remove("none")), done, true},
		{"delete a version of none", ifVersion(remove("none"), other), done, true},
		{"delete a version of an expired record", ifVersion(remove("expired"), other), done, true},
		{"delete an existing record", remove("there"), done, false},
	} {
		g := f.another()
		g.writeRecords(there, at(expired, epoch.Add(-time.Hour)))
		g.expectWrites(c.what, []store.RecordChange{c.change}, c.want)
		var want []store.RecordChange
		if c.left || c.change.Key != "there" {
			want = append(want, there)
		}
		if !c.left && c.change.Body != nil {
			want = append(want, c.change)
		}
		slices.SortFunc(want, func(a, b store.RecordChange) int { return strings.Compare(a.Key, b.Key) })
		g.expectRecords(c.what, want...)
	}
}

func testRepeatRecordChange(f *fixture) {
	first := ifAbsent(write("k", "1"))
	f.writeRecords(first)
	f.writeRecords(first)
	f.expectRecords("created twice", first)
	second := until(ifVersion(write("k", "2"), first.Version), epoch.Add(time.Hour))
	f.writeRecords(second, second)
	f.writeRecords(second)
	f.expectRecords("replaced several times", second)
	f.expectWrites("creation once it was replaced", []store.RecordChange{first}, store.ErrPrecondition)
	f.expectRecords("created once it was replaced", second)
	gone := ifVersion(remove("k"), second.Version)
	f.writeRecords(gone, gone)
	f.writeRecords(gone)
	f.expectRecords("deleted several times")
	f.expectWrites("a replacement once it was deleted", []store.RecordChange{second}, store.ErrPrecondition)
	f.expectRecords("replaced once it was deleted")
}

func testRecordChangesInOrder(f *fixture) {
	first := ifAbsent(write("k", "1"))
	second := ifVersion(write("k", "2"), first.Version)
	stale := ifVersion(write("k", "stale"), first.Version)
	gone := ifVersion(remove("k"), second.Version)
	last := ifAbsent(write("k", "last"))
	late := ifAbsent(write("k", "late"))
	beside := write("j", "beside")
	f.expectWrites("in order", []store.RecordChange{first, second, beside, stale, gone, last, late},
		nil, nil, nil, store.ErrPrecondition, nil, nil, store.ErrPrecondition)
	f.expectRecords("in order", beside, last)
}

func testManyRecordChanges(f *fixture) {
	const n = 150 // more than some stores change at once
	var changes []store.RecordChange
	want := make([]error, n)
	for i := range n {
		c := ifAbsent(write(fmt.Sprintf("k%04d", i), fmt.Sprint(i)))
		if i%50 == 7 {
			f.writeRecords(write(c.Key, "there"))
			want[i] = store.ErrPrecondition
		}
		changes = append(changes, c)
	}
	f.expectWrites("many", changes, want...)
	var keys, bodies int
	for _, r := range f.allRecords(store.RecordFilter{}, 250) {
		keys++
		if string(r.Body) == "there" {
			bodies++
		}
	}
	expect(f, "records", keys, n)
	expect(f, "records that were there before", bodies, n/50)
}

func testRecordBounds(f *fixture) {
	long := strings.Repeat("é", store.MaxRecordKey/2)
	large := write(long, strings.Repeat("x", store.MaxRecordBody))
	beside := write("beside", "1")
	f.expectWrites("bounds", []store.RecordChange{
		large, write("k", strings.Repeat("x", store.MaxRecordBody+1)), write(long+"x", "1"), beside,
	}, nil, store.ErrTooLarge, store.ErrTooLarge, nil)
	f.expectRecords("bounds", beside, large)
	f.expectWrites("a larger one", []store.RecordChange{write(long, strings.Repeat("y", store.MaxRecordBody+1))},
		store.ErrTooLarge)
	f.expectRecords("the former records stay", beside, large)
}

// byteOrder has keys in the order of their bytes, which differs from the order of any language and of UTF-16, with
// characters that are special in some query language.
var byteOrder = []string{
	" ", " a", "!", "#", "$", "$a", "%", "(a", "*", "+", "-", ".", "/", "0", "10", "9", ":", "A", "B", "[a", "\\", "]",
	"^a", "_", "a", "a ", "a%", "a*", "a-b", "a.b", "a/b", "aB", "a\\", "a_", "a_b", "aa", "ab", "aé", "b", "{a}", "|",
	"~", "é", "ö", "日本", "\uffff", "🔔", "🔔x",
}

func testListRecords(f *fixture) {
	var changes []store.RecordChange
	for i, key := range byteOrder {
		changes = append(changes, write(key, fmt.Sprint(i)))
	}
	shuffled := slices.Clone(changes)
	slices.SortFunc(shuffled, func(a, b store.RecordChange) int { return strings.Compare(string(b.Body), string(a.Body)) })
	f.writeRecords(shuffled...)
	for _, limit := range []int{1, 3, len(changes), 1000} {
		f.expectPage(fmt.Sprintf("by pages of %d", limit), f.allRecords(store.RecordFilter{}, limit), changes...)
	}
	for _, c := range []struct{ prefix, after string }{
		{"", "a"}, {"", "a\\\\"}, {"", "🔔x"}, {"", "none"}, {"a", ""}, {"a", "a*"}, {"a", "Z"}, {"a", "b"}, {"a_", ""},
		{"a%", ""}, {"a.", ""}, {"a*", ""}, {"a\\", ""}, {"[a", ""}, {"(a", ""}, {"^", ""}, {"$", ""}, {" ", ""}, {"é", ""},
		{"\uffff", ""},
		{"🔔", ""}, {"🔔", "🔔"}, {"none", ""}, {"🔔xy", ""},
	} {
		var want []store.RecordChange
		for _, change := range changes {
			if strings.HasPrefix(change.Key, c.prefix) && change.Key > c.after {
				want = append(want, change)
			}
		}
		for _, limit := range []int{1, 2, 1000} {
			f.expectPage(fmt.Sprintf("prefix %q after %q by pages of %d", c.prefix, c.after, limit),
				f.allRecords(store.RecordFilter{Prefix: c.prefix, After: c.after}, limit), want...)
		}
	}
}

func testListRecordsByKey(f *fixture) {
	expectSame(f, "records of an empty store", recordKeys(f.records(store.RecordFilter{Keys: []string{"a"}})), []string{})
	for _, key := range byteOrder {
		f.writeRecords(write(key, "of "+key))
	}
	f.writeRecords(remove("aa"))
	for _, c := range []struct {
		what   string
		filter store.RecordFilter
		want   []string
	}{
		{"some", store.RecordFilter{Keys: []string{"b", "nobody", "a", "🔔"}}, []string{"a", "b", "🔔"}},
		{"none that are there", store.RecordFilter{Keys: []string{"nobody", "aa", "A "}}, []string{}},
		{"a page", store.RecordFilter{Keys: []string{"b", "a_b", "a"}, Limit: 2}, []string{"a", "a_b"}},
		{"the next", store.RecordFilter{Keys: []string{"b", "a_b", "a"}, Limit: 2, After: "a_b"}, []string{"b"}},
		{"those with a prefix", store.RecordFilter{Keys: []string{"b", "a_b", "a_", "a"}, Prefix: "a_"},
			[]string{"a_", "a_b"}},
	} {
		expectSame(f, c.what, recordKeys(f.records(c.filter)), c.want)
	}
	many := make([]string, 1100)
	for i := range many {
		many[i] = fmt.Sprintf("none %d", i)
	}
	expectSame(f, "among many", recordKeys(f.records(store.RecordFilter{Keys: append(many, "b", "a")})),
		[]string{"a", "b"})
}

func testRecordCollections(f *fixture) {
	names := []string{"a", "A", "aa", "a:b", "a/b", "a b", "b", "é"}
	var changes []store.RecordChange
	for _, name := range names {
		c := write("k", "of "+name)
		c.Collection = name
		d := write("b:k", "beside of "+name)
		d.Collection = name
		changes = append(changes, d, c)
	}
	f.writeRecords(changes...)
	expectCollections := func(what string, without string) {
		f.Helper()
		for i, name := range names {
			want := changes[2*i : 2*i+2]
			if name == without {
				want = want[:1]
			}
			f.expectPage(what+": "+name, f.allRecords(store.RecordFilter{Collection: name}, 1), want...)
			f.expectPage(what+": by key: "+name, f.records(store.RecordFilter{Collection: name, Keys: []string{"k", "b:k"}}),
				want...)
		}
	}
	expectCollections("written", "")
	gone := remove("k")
	gone.Collection = "a"
	f.writeRecords(gone)
	expectCollections("one is deleted", "a")
	stale := ifVersion(write("k", "2"), changes[1].Version) // of another collection
	stale.Collection = "A"
	f.expectWrites("on a version of another collection", []store.RecordChange{stale}, store.ErrPrecondition)
	f.expectPage("no such collection", f.records(store.RecordFilter{Collection: "none"}))
}

func testExpiredRecords(f *fixture) {
	const n = 30
	end := epoch.Add(time.Minute)
	var all, lasting []store.RecordChange
	for i := range n {
		c := write(fmt.Sprintf("k%02d", i), "1")
		if i%10 == 9 {
			lasting = append(lasting, c)
		} else {
			c = until(c, end)
		}
		all = append(all, c)
	}
	f.writeRecords(all...)
	filter := func(now time.Time) store.RecordFilter { return store.RecordFilter{Now: now} }
	for _, limit := range []int{1, 2, n, 100} {
		f.expectPage("just before they expire", f.allRecords(filter(end.Add(-time.Millisecond)), limit), all...)
		f.expectPage("when they have expired", f.allRecords(filter(end), limit), lasting...)
		f.expectPage("long after", f.allRecords(filter(end.Add(1000*time.Hour)), limit), lasting...)
	}
	expectSame(f, "by key", recordKeys(f.records(store.RecordFilter{Keys: []string{"k00", "k09", "k10"}, Now: end})),
		[]string{"k09"})

	renewed := until(write("k00", "renewed"), end.Add(time.Minute))
	kept := write("k01", "kept")
	f.writeRecords(renewed, kept, ifAbsent(at(write("k02", "anew"), end)))
	expectSame(f, "of those that were renewed", recordKeys(f.records(store.RecordFilter{Prefix: "k0", Now: end})),
		[]string{"k00", "k01", "k02", "k09"})
	expectSame(f, "of those that were renewed, later",
		recordKeys(f.records(store.RecordFilter{Prefix: "k0", Now: end.Add(time.Minute)})),
		[]string{"k01", "k02", "k09"})
}

func testSweepRecords(f *fixture) {
	end := epoch.Add(time.Minute)
	const n = 7
	for i := range n {
		c := until(write(fmt.Sprintf("expiring %d", i), "1"), end)
		if i%2 == 0 {
			c.Collection = "others"
		}
		f.writeRecords(c)
	}
	later, lasting := until(write("later", "1"), end.Add(time.Millisecond)), write("lasting", "1")
	f.writeRecords(later, lasting, until(write("renewed", "1"), end), until(write("kept", "1"), end),
		until(write("deleted", "1"), end))
	renewed, kept := until(write("renewed", "2"), end.Add(time.Hour)), write("kept", "2")
	f.writeRecords(renewed, kept, remove("deleted"))

	expect(f, "swept before they expire", f.sweep(store.SweepParams{Now: end.Add(-time.Millisecond)}), store.Swept{})
	others := f.records(store.RecordFilter{Collection: "others"})
	expect(f, "records before", len(f.records(store.RecordFilter{}))+len(others), n+4)
	swept := 0
	for _, want := range []int{3, 3, n - 6} {
		got := f.sweep(store.SweepParams{Now: end, Limit: 3})
		expect(f, "swept", got, store.Swept{Records: want, More: want == 3})
		swept += got.Records
		left := len(f.records(store.RecordFilter{})) + len(f.records(store.RecordFilter{Collection: "others"}))
		expect(f, "records after a sweep", left, n+4-swept) // listed at a time before they expired
	}
	f.expectRecords("left", kept, lasting, later, renewed)
	expect(f, "swept again", f.sweep(store.SweepParams{Now: end, Limit: 3}), store.Swept{})
	expect(f, "swept later", f.sweep(store.SweepParams{Now: end.Add(time.Hour)}), store.Swept{Records: 2})
	f.expectRecords("left in the end", kept, lasting)
}

// raceRecords makes one change on each of several handles at the same time, and returns those that succeeded. The
// others return [store.ErrPrecondition].
func (f *fixture) raceRecords(change func(i int) store.RecordChange) (won []store.RecordChange) {
	f.Helper()
	handles := make([]store.Store, racers)
	for i := range handles {
		handles[i] = f.handle()
	}
	answers := make([]error, racers)
	changes := make([]store.RecordChange, racers)
	start := make(chan struct{})
	var group sync.WaitGroup
	for i := range racers {
		changes[i] = change(i)
		group.Go(func() {
			<-start
			answers[i] = handles[i].WriteRecords(f.Context(), changes[i:i+1])[0]
		})
	}
	close(start)
	group.Wait()
	for i, err := range answers {
		switch {
		case err == nil:
			won = append(won, changes[i])
		case !errors.Is(err, store.ErrPrecondition):
			f.Errorf("a racing change answers %v", err)
		}
	}
	return won
}

const racers = 6

func testRaceToCreateRecord(f *fixture) {
	for _, c := range []struct {
		what   string
		before []store.RecordChange
	}{
		{"where there is none", nil},
		{"where one was deleted", []store.RecordChange{write("k", "0"), remove("k")}},
		{"where one has expired", []store.RecordChange{until(write("k", "0"), epoch)}},
	} {
		g := f.another()
		g.writeRecords(c.before...)
		won := g.raceRecords(func(i int) store.RecordChange { return ifAbsent(write("k", fmt.Sprint(i))) })
		expect(f, c.what+": creations that succeeded", len(won), 1)
		g.expectRecords(c.what, won...)
	}
}

func testRaceToChangeRecord(f *fixture) {
	there := write("k", "0")
	f.writeRecords(there)
	won := f.raceRecords(func(i int) store.RecordChange { return ifVersion(write("k", fmt.Sprint(i)), there.Version) })
	expect(f, "replacements that succeeded", len(won), 1)
	f.expectRecords("replaced", won...)
	if len(won) == 0 {
		return
	}
	of := won[0].Version
	won = f.raceRecords(func(i int) store.RecordChange {
		if i%2 == 0 {
			return ifVersion(remove("k"), of)
		}
		return ifVersion(write("k", fmt.Sprint(i)), of)
	})
	left := slices.DeleteFunc(won, func(c store.RecordChange) bool { return c.Body == nil })
	if len(left) > 1 {
		f.Errorf("%d replacements succeeded beside deletions, want at most 1", len(left))
	}
	f.expectRecords("replaced or deleted", left...)
}

func testRecordCounter(f *fixture) {
	const each = 5
	f.writeRecords(write("k", ""))
	var group sync.WaitGroup
	var lost atomic.Int64
	for range racers {
		s := f.handle()
		group.Go(func() {
			for done := 0; done < each; {
				page, err := s.Records(f.Context(), store.RecordFilter{Collection: collection, Limit: 1, Now: epoch})
				if err != nil || len(page) != 1 {
					f.Errorf("read: %d records, %v", len(page), err)
					return
				}
				c := ifVersion(write("k", string(page[0].Body)+"x"), page[0].Version)
				switch err := s.WriteRecords(f.Context(), []store.RecordChange{c})[0]; {
				case err == nil:
					done++
				case errors.Is(err, store.ErrPrecondition):
					lost.Add(1)
				default:
					f.Errorf("write: %v", err)
					return
				}
			}
		})
	}
	group.Wait()
	expect(f, "changes", string(f.records(store.RecordFilter{})[0].Body), strings.Repeat("x", racers*each))
	f.Logf("%d changes came second", lost.Load())
}

func testRaceToWriteRecord(f *fixture) {
	for round := range 3 {
		key := fmt.Sprintf("k%d", round)
		won := f.raceRecords(func(i int) store.RecordChange {
			return until(write(key, strings.Repeat("x", i+1)), epoch.Add(time.Duration(i+1)*time.Hour))
		})
		expect(f, "writes that succeeded", len(won), racers)
		page := f.records(store.RecordFilter{Prefix: key})
		if len(page) != 1 {
			f.Fatalf("there are %d records, want 1", len(page))
		}
		i := slices.IndexFunc(won, func(c store.RecordChange) bool { return c.Version == page[0].Version })
		if i < 0 {
			f.Fatalf("version %s is nobody's", page[0].Version)
		}
		f.expectPage("one's is left, whole", page, won[i])
	}
}

func testRecordsApart(f *fixture) {
	c := write("k", "1")
	c.Collection = job.DefaultTenant
	f.put(newPut(name("k"), epoch, 0))
	f.writeRecords(c)
	f.expectBacklog("with a record", epoch, backlog{Pending: 1, Due: 1, OldestDue: epoch})
	expect(f, "exported documents", len(f.export(10)), 2)
	f.cancel(name("k"))
	f.expectPage("without the job", f.records(store.RecordFilter{Collection: job.DefaultTenant}), c)
	expect(f, "exported documents of records alone", len(f.export(10)), 0)
}

func testRecordsEnded(f *fixture) {
	there := write("there", "1")
	f.writeRecords(there)
	ended, cancel := context.WithCancel(f.Context())
	cancel()
	_, listErr := f.store().Records(ended, store.RecordFilter{Collection: collection, Limit: 1, Now: epoch})
	_, namedErr := f.store().Records(ended,
		store.RecordFilter{Collection: collection, Limit: 1, Now: epoch, Keys: []string{"there"}})
	answers := f.store().WriteRecords(ended, []store.RecordChange{write("k", "1"), write("there", "2"), remove("there")})
	expect(f, "answers", len(answers), 3)
	for i, err := range append(answers, listErr, namedErr) {
		expect(f, fmt.Sprintf("answer %d is unavailable", i), errors.Is(err, store.ErrUnavailable), true)
	}
	f.expectRecords("after writes in vain", there)
}
