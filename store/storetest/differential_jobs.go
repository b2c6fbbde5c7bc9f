package storetest

import (
	"context"
	"fmt"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// newJob returns a submission of a random schedule.
func (d *differential) newJob(n job.Name) job.Job {
	j := newPut(n, d.now).Job
	switch kind := oneOf(d, "kind", "instants", "instants", "crontab", "crontab", "ending crontab", "sequence"); kind {
	case "sequence":
		j = newSequence(n, d.now, oneOf(d, "subscribers", "null", "3", `["a","b"]`)).Job
	case "instants":
		j.Schedule.Instants = d.instants()
	default:
		var err error
		expression := oneOf(d, "crontab", "@every 5s", "* * * * * *", "@hourly")
		if j.Schedule.Crontab, err = job.ParseCrontab(expression); err != nil {
			panic(err)
		}
		if kind == "ending crontab" {
			j.Schedule.EndAt = d.now.Add(oneOf(d, "end", 0, 10*time.Second, lease))
		}
		j.ExpiresAt = far
	}
	j.Callback.Data = fmt.Appendf(nil, `{ "n":%d }`, d.serial)
	j.Options.Priority = oneOf(d, "priority", everyPriority...)
	j.Options.Deadline = oneOf(d, "deadline", 0, job.Duration(time.Hour))
	j.Options.Spread = oneOf(d, "spread", 0, job.Duration(20*time.Second))
	bringsForward(&j)
	j.Revision = d.revision()
	j.Version = j.Revision
	return j
}

// bringsForward takes the spread from a job whose instants are so far ahead that a resume may bring them forward or not.
func bringsForward(j *job.Job) {
	if j.Schedule.Crontab.String() == "@hourly" {
		j.Options.Spread = 0
	}
}

// begin returns the put of a job, unless its schedule has ended before it begins.
func (d *differential) begin(j job.Job) store.Put {
	b, err := j.Begin(d.now, job.PastFire, expansion)
	if err != nil {
		d.Skip(err)
	}
	return store.Put{Job: j, Occurrences: b.Occurrences, Now: d.now}
}

// instants returns up to five instants around now, on a grid, so that many coincide.
func (d *differential) instants() (instants []time.Time) {
	grid := d.now.Truncate(5 * time.Second)
	for _, i := range draw(d, "instants", rapid.SliceOfNDistinct(rapid.IntRange(-2, 20), 0, 5, rapid.ID[int])) {
		instants = append(instants, grid.Add(time.Duration(i)*5*time.Second))
	}
	slices.SortFunc(instants, time.Time.Compare)
	return instants
}

// put puts jobs with random conditions.
func (d *differential) put() {
	var puts []store.Put
	for range draw(d, "jobs", rapid.IntRange(1, 3)) {
		n := d.name()
		p := d.begin(d.newJob(n))
		status, there := d.present(n)
		switch oneOf(d, "on condition",
			"none", "none", "none", "none", "absent", "present", "its version", "another version", "not newer",
			"from", "another", "anew") {
		case "absent":
			p.If.Absent = true
		case "present":
			p.If.Present = true
		case "its version":
			p.If.Versions = []job.Revision{d.revision(), status.Version}
		case "another version":
			p.If.Versions = []job.Revision{d.revision()}
		case "not newer":
			p.Newer = d.span()
		case "from":
			p.From = store.Replaced{Version: status.Version, Cursor: status.Cursor}
		case "another":
			p.From = store.Replaced{Version: d.revision(), Cursor: status.Cursor}
		case "anew":
			p.StartsOver = there && status.Gone(d.now)
		}
		puts = append(puts, p)
	}
	d.putBoth(puts)
}

// edit replaces a job, and carries over the instants that both jobs have, including settled ones.
func (d *differential) edit() {
	n := d.name()
	status, there := d.present(n)
	if !there {
		d.Skip("there is no such job")
	}
	j := d.newJob(n)
	if oneOf(d, "schedule", "same", "same", "another") == "same" {
		j.Schedule = status.Schedule
		j.Options.Recurrence, j.Options.Payloads = status.Options.Recurrence, status.Options.Payloads
		j.ExpiresAt = status.ExpiresAt
		bringsForward(&j)
	}
	j.Schedule.GoOn(&status.Schedule)
	p := d.begin(j)
	p.From = store.Replaced{Version: status.Version, Cursor: status.Cursor}
	all := p.Occurrences
	p.Occurrences = nil
	for _, o := range all {
		if before, known := d.known[o.DeliveryID()]; known && before.revision == status.Revision {
			p.Carried = append(p.Carried, store.Carried{ID: before.id, As: o})
		} else {
			p.Occurrences = append(p.Occurrences, o)
		}
	}
	d.putBoth([]store.Put{p})
}

func (d *differential) putBoth(puts []store.Put) {
	d.Helper()
	put := func(s store.Store) []store.PutResult {
		ctx, cancel := context.WithTimeout(d.ctx, store.Within)
		defer cancel()
		return s.Put(ctx, puts)
	}
	want, got := put(d.reference), put(d.store())
	for i := range want {
		what := fmt.Sprintf("put %d", i)
		same(d, "the error of "+what, answer(got[i].Err), answer(want[i].Err))
		if want[i].Err != nil {
			continue
		}
		same(d, "the answer of "+what, got[i], want[i])
		delete(d.vagueExpansion, puts[i].Job.Name)
		delete(d.vagueExpiry, puts[i].Job.Name)
		for _, o := range puts[i].Occurrences {
			d.known[o.DeliveryID()] = knownOccurrence{o.ID, o.Revision}
		}
		for _, c := range puts[i].Carried {
			d.known[c.As.DeliveryID()] = knownOccurrence{c.ID, c.As.Revision}
		}
	}
}

// span returns an empty span, or the span of the last seconds.
func (d *differential) span() store.Span {
	before := oneOf(d, "submitted", 0, time.Second, time.Hour)
	return store.Span{After: job.LastRevision(d.now.Add(-before)), Until: job.LastRevision(d.now.Add(time.Minute))}
}

func (d *differential) cancel() {
	names, asked := someOf(d, "names", 2, everyName), store.Asked{Now: d.now}
	if draw(d, "unless newer", rapid.Bool()) {
		asked.Newer = d.span()
	}
	first, _ := d.present(names[0])
	switch oneOf(d, "on condition", "none", "none", "none", "none", "absent", "present", "its version", "another") {
	case "absent":
		asked.If.Absent = true
	case "present":
		asked.If.Present = true
	case "its version":
		asked.If.Versions = []job.Revision{d.revision(), first.Version}
	case "another":
		asked.If.Versions = []job.Revision{d.revision()}
	}
	want, got := both(d, "cancel", func(s store.Store) ([]store.CancelResult, error) {
		return s.Cancel(d.ctx, names, asked)
	})
	same(d, "the answer of cancel", got, want)
}

func (d *differential) amend() {
	n := d.name()
	status, _ := d.present(n)
	status.Name = n
	of := oneOf(d, "of", status.Version, status.Version, d.revision())
	a := amendment(status.Job, of, d.now)
	a.Version = d.revision()
	bothDo(d, "amend", func(s store.Store) error { return s.Amend(d.ctx, a) })
}

func (d *differential) pause() {
	n, version := d.name(), d.revision()
	bothDo(d, "pause", func(s store.Store) error { return s.Pause(d.ctx, n, version, d.now) })
}

// resume resumes a job. If the pause has interrupted an expansion, the job may be due for expansion only after that
// claim's lease, so time passes until then.
func (d *differential) resume() {
	n, version := d.name(), d.revision()
	before, there := d.present(n)
	if there && !before.PausedAt.IsZero() && !before.Cursor.IsZero() {
		for _, e := range d.expansions {
			if e.job.Name == n && e.job.ExpandAt.After(d.now) {
				d.vagueExpansion[n] = true
			}
		}
	}
	bothDo(d, "resume", func(s store.Store) error { return s.Resume(d.ctx, n, version, d.now) })
	if d.vagueExpansion[n] {
		d.now = d.now.Add(lease)
	}
}

func (d *differential) trigger() {
	o := trigger(d.name(), d.now, draw(d, "position", rapid.IntRange(1, 3)))
	o.Priority = oneOf(d, "priority", everyPriority...)
	bothDo(d, "trigger", func(s store.Store) error { return s.Trigger(d.ctx, o) })
}

// list compares pages of lists.
func (d *differential) list() {
	n := d.name()
	status, there := d.present(n)
	limit := draw(d, "limit", rapid.IntRange(1, 4))

	want, got := both(d, "a job", func(s store.Store) (store.JobStatus, error) { return store.ReadJob(d.ctx, s, n) })
	same(d, "a job", d.showJob(got.Job), d.showJob(want.Job))
	same(d, "a job's next instant", got.Next, want.Next)

	jobs := store.JobFilter{
		Tenant: n.Tenant, Limit: limit,
		Prefix: oneOf(d, "prefix", "", "a", "a/"), After: oneOf(d, "after", "", "a", "a/ü 🔔"),
		Whole: draw(d, "whole", rapid.Bool()), Standalone: draw(d, "standalone", rapid.Bool()),
	}
	if jobs.Prefix == "" {
		jobs.Key = oneOf(d, "key of the list", "", n.Key)
	}
	wantJobs, gotJobs := both(d, "jobs", func(s store.Store) ([]store.JobStatus, error) { return s.Jobs(d.ctx, jobs) })
	shown := func(all []store.JobStatus) (shown []string) {
		for _, j := range all {
			shown = append(shown, d.showJob(j.Job), j.Next.String())
		}
		return shown
	}
	same(d, "the list of jobs", shown(gotJobs), shown(wantJobs))

	occurrences := store.OccurrenceFilter{
		Name: n, Limit: limit, Revision: status.Revision, Count: draw(d, "count", rapid.Bool()),
	}
	if pending := d.pendingOf(status); there && len(pending) > 0 {
		occurrences.After = oneOf(d, "after an occurrence", job.ID{}, pending[0].ID, pending[len(pending)/2].ID)
	}
	list := func(s store.Store) (page []string, err error) {
		all, total, err := s.Occurrences(d.ctx, occurrences)
		return append(d.showOccurrences(all), fmt.Sprint(total)), err
	}
	wantPage, gotPage := both(d, "occurrences", list)
	same(d, "the list of occurrences", gotPage, wantPage)

	dead := store.DeadLetterFilter{
		Tenant: n.Tenant, Limit: limit, Brief: draw(d, "brief", rapid.Bool()),
		Key: oneOf(d, "key", "", n.Key), Prefix: oneOf(d, "prefix", "", "a"),
	}
	if there := d.deadLetters(n.Tenant); len(there) > 0 {
		middle := there[len(there)/2].ID
		dead.After, dead.ID = oneOf(d, "after a dead letter", job.ID{}, middle), oneOf(d, "id", job.ID{}, job.ID{}, middle)
	}
	wantDead, gotDead := both(d, "dead letters", func(s store.Store) ([]job.Occurrence, error) {
		return s.DeadLetters(d.ctx, dead)
	})
	same(d, "the list of dead letters", d.showOccurrences(gotDead), d.showOccurrences(wantDead))
}

func (d *differential) deadLetters(tenant string) []job.Occurrence {
	d.Helper()
	all, err := d.reference.DeadLetters(d.ctx, store.DeadLetterFilter{Tenant: tenant, Limit: 1000})
	if err != nil {
		d.Fatal(err)
	}
	return all
}

// settleDead redrives or deletes dead letters, and ids that have none.
func (d *differential) settleDead() {
	tenant := d.name().Tenant
	var ids []job.ID
	for _, o := range d.deadLetters(tenant) {
		ids = append(ids, o.ID)
	}
	if len(ids) == 0 {
		d.Skip("there is no dead letter")
	}
	if len(d.claims) > 0 {
		ids = append(ids, d.claims[0].reference.ID)
	}
	settlement := store.DeadSettlement{
		Tenant: oneOf(d, "of tenant", tenant, tenant, "acme"), IDs: someOf(d, "ids", 3, distinct(ids)),
		Outcome: oneOf(d, "outcome", store.Redrive, store.Redrive, store.Discard), Now: d.now,
	}
	want, got := both(d, "settle dead", func(s store.Store) (int, error) { return s.SettleDead(d.ctx, settlement) })
	same(d, "the dead letters that were settled", got, want)
}

func distinct(ids []job.ID) []job.ID {
	slices.SortFunc(ids, job.ID.Compare)
	return slices.Compact(ids)
}

var (
	everyCollection = []string{"x", "y"}
	everyRecord     = []string{"a", "a/b", "ü"}
)

// writeRecords makes changes of records, and compares a page of them.
func (d *differential) writeRecords() {
	var changes []store.RecordChange
	for range draw(d, "changes", rapid.IntRange(0, 3)) {
		c := store.RecordChange{
			Collection: oneOf(d, "collection", everyCollection...), Key: oneOf(d, "record", everyRecord...),
			Version: d.revision(), Now: d.now,
			Body: oneOf(d, "body", nil, []byte{}, []byte("b"), fmt.Append(nil, d.serial)),
		}
		if c.Body != nil {
			c.ExpiresAt = oneOf(d, "expires", time.Time{}, d.now.Add(time.Second))
		}
		filter := store.RecordFilter{Collection: c.Collection, Keys: []string{c.Key}, Limit: 1, Now: d.now}
		present, err := d.reference.Records(d.ctx, filter)
		if err != nil {
			d.Fatal(err)
		}
		switch oneOf(d, "if", "always", "always", "absent", "its version", "another version", "again") {
		case "absent":
			c.If.Absent = true
		case "another version":
			c.If.Version = d.revision()
		case "its version":
			if len(present) > 0 {
				c.If.Version = present[0].Version
			}
		case "again":
			if len(present) > 0 {
				c.Version, c.Body, c.ExpiresAt = present[0].Version, present[0].Body, present[0].ExpiresAt
			}
		}
		changes = append(changes, c)
	}
	write := func(s store.Store) (answers []string) {
		for _, err := range s.WriteRecords(d.ctx, changes) {
			answers = append(answers, answer(err))
		}
		return answers
	}
	want := write(d.reference)
	same(d, "the answers of writing records", write(d.store()), want)

	filter := store.RecordFilter{
		Collection: oneOf(d, "list of", everyCollection...),
		Prefix:     oneOf(d, "prefix", "", "a"), After: oneOf(d, "after", "", "a"),
		Limit: draw(d, "limit", rapid.IntRange(1, 4)), Now: d.now,
		Keys: oneOf(d, "keys", nil, nil, []string{"a"}, []string{"ü", "none", "a"}),
	}
	wantPage, gotPage := both(d, "records", func(s store.Store) ([]store.Record, error) {
		return s.Records(d.ctx, filter)
	})
	same(d, "the records", fmt.Sprintf("%+q", gotPage), fmt.Sprintf("%+q", wantPage))
}

// move removes everything from both stores, and imports the reference's documents into both.
func (d *differential) move() {
	documents := d.contents(d.reference, draw(d, "page", rapid.IntRange(1, 9)))
	d.removeAll()
	for rest := documents; len(rest) > 0; {
		n := min(len(rest), draw(d, "at once", rapid.IntRange(1, 9)))
		part := rest[:n]
		rest = rest[n:]
		want, got := both(d, "import", func(s store.Store) (int, error) { return s.Import(d.ctx, part) })
		same(d, "the number imported", got, want)
		want, got = both(d, "import again", func(s store.Store) (int, error) { return s.Import(d.ctx, part) })
		same(d, "the number imported again", got, want)
	}
	revisions := map[job.ID]job.Revision{}
	for _, r := range documents {
		if r.Occurrence != nil {
			revisions[r.Occurrence.ID] = r.Occurrence.Revision
		}
	}
	for i := range d.claims { // the sources of carried-over occurrences are not moved
		d.claims[i].reference.Revision = revisions[d.claims[i].reference.ID]
		d.claims[i].store = d.claims[i].reference
	}
	d.expansions = nil // the tokens are not moved
	clear(d.vagueDue)
	clear(d.vagueExpansion)
	clear(d.vagueExpiry)
}

// removeAll cancels all jobs, and deletes all dead letters.
func (d *differential) removeAll() {
	want, got := both(d, "cancel all", func(s store.Store) ([]store.CancelResult, error) {
		return s.Cancel(d.ctx, everyName, store.Asked{Now: d.now})
	})
	same(d, "the answer of cancelling all", got, want)
	for _, tenant := range []string{job.DefaultTenant, "acme"} {
		settlement := store.DeadSettlement{Tenant: tenant, Outcome: store.Discard, Now: d.now}
		for _, o := range d.deadLetters(tenant) {
			settlement.IDs = append(settlement.IDs, o.ID)
		}
		want, got := both(d, "delete all dead letters", func(s store.Store) (int, error) {
			return s.SettleDead(d.ctx, settlement)
		})
		same(d, "the number of dead letters deleted", got, want)
	}
}

// empty removes everything from the store, and expects it to be empty.
func (d *differential) empty() {
	d.removeAll()
	d.now = d.now.Add(time.Hour)
	clear(d.vagueExpiry)
	d.sweep() // removes expired records
	var changes []store.RecordChange
	for _, collection := range everyCollection {
		for _, key := range everyRecord {
			changes = append(changes, store.RecordChange{Collection: collection, Key: key, Version: d.revision(), Now: d.now})
		}
	}
	for _, err := range d.handles[0].WriteRecords(d.ctx, changes) {
		if err != nil {
			d.Fatal(err)
		}
	}
	d.compareContents()
	same(d, "the number of documents of an empty store", len(d.contents(d.handles[0], 10)), 0)
	backlog, err := store.CountAll(d.ctx, d.handles[0], d.now)
	if err != nil {
		d.Fatal(err)
	}
	same(d, "the backlog of an empty store", backlog, store.Count{})
}
