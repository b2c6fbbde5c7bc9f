package mongodb

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"golang.org/x/sync/errgroup"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

const (
	// togetherMost bounds the number of jobs or records that one command writes, and togetherBytes the size of each of
	// these jobs, so that none exceeds the size of a document.
	togetherMost  = 64
	togetherBytes = 256 << 10

	// stubFor is the age, by the clocks of replicas, at which a sweep removes a stub. It is far longer than a put may
	// still take the stub.
	stubFor = time.Hour
)

// Put implements [store.Jobs]. Jobs are put independently of each other, except those of one name.
//
// One write, the flip, gives each job its new state. It is an update of the job document, guarded by the server's time
// and by the version that it replaces. So a paused job stays paused, and no other client's change is lost. An insertion
// can't be guarded, so for a new job a stub is inserted first: a document with neither version nor revision, which
// every reader treats as no job. A flip that failed without an answer may have succeeded. Its occurrences are therefore
// kept: they are the job's, or orphans.
func (s *Store) Put(ctx context.Context, puts []store.Put) []store.PutResult {
	ctx, cancel := within(ctx)
	defer cancel()
	results := make([]store.PutResult, len(puts))
	for _, round := range rounds(puts, results) {
		s.putRound(ctx, round)
	}
	return results
}

// put is one job on its way into the store.
type put struct {
	*store.Put
	*store.PutResult
	id      string  // of the job document
	present present // the job document as it was last read
	known   bool    // present was read
	heirs   int     // how many of Carried existed when they were named
}

// present is the state that a change of a job needs; the zero value if there is no job.
type present struct {
	exists              bool
	stub                bool // it does not exist, but a stub of it does
	name                job.Name
	revision, version   job.Revision
	createdAt, pausedAt time.Time
	cursor              time.Time // of a recurring schedule that has not ended
	expandingUntil      time.Time // the end of the lease of an expansion that may still be under way
	carriedFrom         []string  // the replaced revisions with carried-over occurrences, the last one first
}

func (p present) paused() bool { return !p.pausedAt.IsZero() }

// rounds splits puts so that no round has a name twice and those of one name are in order.
func rounds(puts []store.Put, results []store.PutResult) (all [][]*put) {
	next := make(map[string]int, len(puts))
	for i := range puts {
		id := jobID(puts[i].Job.Name)
		n := next[id]
		next[id]++
		if n == len(all) {
			all = append(all, nil)
		}
		all[n] = append(all[n], &put{Put: &puts[i], PutResult: &results[i], id: id})
	}
	return all
}

// putRound puts jobs of distinct names, with one command for all of them where possible.
func (s *Store) putRound(ctx context.Context, round []*put) {
	if err := s.readPresent(ctx, round); err != nil {
		fail(round, notDone(err))
		return
	}
	var going, creating, replacing []*put
	for _, p := range round {
		if p.Err = p.Judge(p.present.version, p.present.cursor); p.Err != nil {
			continue // early, before anything is written; the flip decides
		}
		going = append(going, p)
		if !p.present.exists && p.size() <= togetherBytes {
			creating = append(creating, p)
		} else {
			replacing = append(replacing, p)
		}
	}
	if err := s.prepareFlips(ctx, going, creating); err != nil {
		fail(going, notDone(err))
		s.tidy(ctx, going) // no flip was tried, so no job will have them
		return
	}
	var group errgroup.Group
	group.SetLimit(parallel)
	for _, p := range replacing {
		group.Go(func() error {
			p.Err = s.flip(ctx, p)
			return nil
		})
	}
	for part := range slices.Chunk(creating, togetherMost) {
		group.Go(func() error {
			for _, p := range s.create(ctx, part) {
				p.Err = s.flip(ctx, p)
			}
			return nil
		})
	}
	_ = group.Wait()
}

// size returns the approximate size of the job's document.
func (p *put) size() int {
	return len(p.Job.Callback.Data) + len(p.Job.Schedule.Encode()) + len(p.Job.Options.Encode())
}

// prepareFlips inserts all occurrences, and the stubs of the jobs that are to be created together.
func (s *Store) prepareFlips(ctx context.Context, going, creating []*put) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		occurrences := make([][]job.Occurrence, len(going))
		for i, p := range going {
			occurrences[i] = p.Occurrences
		}
		return s.insertOccurrences(ctx, occurrences, newOccurrenceDocument)
	})
	for part := range slices.Chunk(creating, chunk) {
		group.Go(func() error { return s.insertStubs(ctx, part) })
	}
	return group.Wait()
}

// insertStubs inserts stubs of jobs that have no document. The flip checks existing documents.
func (s *Store) insertStubs(ctx context.Context, puts []*put) error {
	var stubs []any
	for _, p := range puts {
		if !p.present.stub {
			stubs = append(stubs, bson.M{
				"_id": p.id, "tenant": p.Job.Tenant, "key": p.Job.Key, "revision": "", "version": "",
				"expiresAt": p.Now.Add(stubFor),
			})
		}
	}
	if len(stubs) == 0 {
		return nil
	}
	_, err := s.jobs.InsertMany(ctx, stubs, options.InsertMany().SetOrdered(false))
	if onlyDuplicates(err) {
		return nil
	}
	return mapError(err)
}

// stubs matches stubs of jobs, and realJobs everything else.
func stubs() bson.M    { return bson.M{"version": ""} }
func realJobs() bson.M { return bson.M{"version": bson.M{"$gt": ""}} }

func fail(puts []*put, err error) {
	for _, p := range puts {
		p.Err = err
	}
}

// readPresent reads the present state of the puts' jobs.
func (s *Store) readPresent(ctx context.Context, puts []*put) error {
	for part := range slices.Chunk(puts, chunk) {
		ids := make([]string, len(part))
		for i, p := range part {
			ids[i] = p.id
		}
		found, err := s.present(ctx, ids...)
		if err != nil {
			return err
		}
		for _, p := range part {
			p.present, p.known = found[p.id], true
		}
	}
	return nil
}

// present reads the jobs and stubs that exist, by their ids. It also rewrites the occurrences that these jobs have
// carried over.
func (s *Store) present(ctx context.Context, ids ...string) (map[string]present, error) {
	found, err := find[jobDocument](ctx, s.jobs, bson.M{"_id": in(ids)},
		options.Find().SetProjection(bson.M{
			"tenant": 1, "key": 1, "revision": 1, "version": 1, "createdAt": 1, "pausedAt": 1, "cursor": 1, "expandingUntil": 1,
			"inherits": 1, "carriedFrom": 1,
		}))
	if err != nil {
		return nil, err
	}
	if err := s.inheritAll(ctx, found); err != nil {
		return nil, err
	}
	byID := make(map[string]present, len(found))
	for i := range found {
		d := &found[i]
		byID[d.ID] = present{
			exists: d.Version != "", stub: d.Version == "", name: job.Name{Tenant: d.Tenant, Key: d.Key},
			revision: job.Revision(d.Revision), version: job.Revision(d.Version),
			createdAt: d.CreatedAt, pausedAt: d.PausedAt, cursor: d.Cursor, expandingUntil: d.ExpandingUntil,
			carriedFrom: d.CarriedFrom,
		}
	}
	return byID, nil
}

// insertOccurrences inserts the occurrences of several jobs. A document that exists already is the same.
func (s *Store) insertOccurrences(
	ctx context.Context, ofJobs [][]job.Occurrence, document func(*job.Occurrence) occurrenceDocument) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(4) // one by one, the commands of a very large job would take too long
	insert := func(documents []any) {
		group.Go(func() error {
			_, err := s.occurrences.InsertMany(ctx, documents, options.InsertMany().SetOrdered(false))
			if onlyDuplicates(err) {
				return nil
			}
			return mapError(err)
		})
	}
	var documents []any
	for _, occurrences := range ofJobs {
		for i := range occurrences {
			documents = append(documents, document(&occurrences[i]))
			if len(documents) == chunk {
				insert(documents)
				documents = nil
			}
		}
	}
	if len(documents) > 0 {
		insert(documents)
	}
	return group.Wait()
}

// create flips new jobs, all by one command, whose answer has only the number of flipped ones. It returns those that
// must be flipped one by one: another Put was faster, the command was late, or a cancellation has removed the stub.
func (s *Store) create(ctx context.Context, puts []*put) (left []*put) {
	part, cancel, inTime, _, err := s.bounded(ctx)
	if err != nil {
		fail(puts, err)
		s.tidy(ctx, puts)
		return nil
	}
	defer cancel()
	writes := make([]mongo.WriteModel, len(puts))
	for i, p := range puts {
		writes[i] = mongo.NewUpdateOneModel().
			SetFilter(both(bson.M{"_id": p.id, "version": ""}, inTime)).SetUpdate(replacement(p))
	}
	broken := s.brokenConnections.Load()
	result, err := s.jobs.BulkWrite(part, writes, options.BulkWrite().SetOrdered(false))
	bulk, partly := errors.AsType[mongo.BulkWriteException](err)
	if err != nil && (!partly || bulk.WriteConcernError != nil) {
		for _, p := range puts {
			p.Err = s.flipFailed(ctx, p, s.writeError(err, broken))
		}
		return nil
	}
	if result == nil {
		result = &mongo.BulkWriteResult{}
	}
	tried := slices.Clone(puts)
	for _, e := range bulk.WriteErrors {
		tried[e.Index].Err = s.flipFailed(ctx, tried[e.Index], s.writeError(e.WriteError, broken))
		tried[e.Index] = nil
	}
	tried = slices.DeleteFunc(tried, func(p *put) bool { return p == nil })
	if int(result.MatchedCount) == len(tried) {
		return nil
	}

	// Some were not flipped. A job with the put's revision was flipped; one without it may have been flipped and then
	// replaced or cancelled.
	if err := s.readPresent(ctx, tried); err != nil {
		fail(tried, unknown(err))
		return nil
	}
	for _, p := range tried {
		if p.present.revision != p.Job.Revision {
			left = append(left, p)
		}
	}
	if int(result.MatchedCount) > len(tried)-len(left) {
		fail(left, fmt.Errorf("%w: it is unknown which jobs were put and then replaced", store.ErrUnavailable))
		return nil
	}
	return left
}

// flip makes one put's revision its job's, whether or not the job exists. The write fails if the job has changed since
// it was read; each such failure means that another client's change has succeeded.
func (s *Store) flip(ctx context.Context, p *put) error {
	for ; ; p.known = false {
		if err := s.prepareFlip(ctx, p); err != nil {
			s.tidy(ctx, []*put{p})
			return notDone(err)
		}
		matched := false
		err := s.inTime(ctx, func(ctx context.Context, inTime bson.M) (bool, error) {
			result, err := s.jobs.UpdateOne(ctx, both(p.replaces(), inTime), replacement(p))
			matched = err == nil && result.MatchedCount > 0
			return matched, err
		})
		if err != nil {
			return s.flipFailed(ctx, p, err)
		}
		if matched {
			return s.afterFlip(ctx, p)
		}
	}
}

// prepareFlip makes sure that the document to replace exists and may be replaced.
func (s *Store) prepareFlip(ctx context.Context, p *put) error {
	if !p.known {
		if err := s.readPresent(ctx, []*put{p}); err != nil {
			return err
		}
	}
	if err := p.Judge(p.present.version, p.present.cursor); err != nil {
		return err
	}
	if p.present.exists {
		return s.nameHeirs(ctx, p)
	}
	return s.insertStubs(ctx, []*put{p})
}

// replaces matches the document that a flip replaces. A change of the cursor gives no new version, so the filter names
// the cursor only if the put does.
func (p *put) replaces() bson.M {
	filter := bson.M{"_id": p.id, "version": p.present.version}
	switch {
	case p.From == store.Replaced{}:
	case p.From.Cursor.IsZero():
		filter["cursor"] = absent()
	default:
		filter["cursor"] = p.From.Cursor
	}
	return filter
}

// flipFailed tidies up if the error of a flip proves that nothing was written.
func (s *Store) flipFailed(ctx context.Context, p *put, err error) error {
	if errors.Is(err, store.ErrTooLarge) || errors.Is(err, store.ErrNotDone) {
		s.tidy(ctx, []*put{p})
	}
	return err
}

// staysPaused reports whether the job will be paused after the put, judged by the job as it was read.
func (p *put) staysPaused() bool { return p.present.paused() && !p.StartsOver }

// replacement returns the update that turns a job document into another job's of the same name, or a stub into a job. A
// paused job stays paused and is not to be expanded, unless StartsOver is set. An expansion of the replaced job ends.
func replacement(p *put) bson.M {
	d := newJobDocument(&p.Job)
	set := bson.M{
		"revision": d.Revision, "version": d.Version, "updatedAt": d.UpdatedAt, "expiresAt": d.ExpiresAt,
		"callback": d.Callback, "schedule": d.Schedule,
	}
	unset := bson.M{"expandToken": "", "expandingUntil": ""}
	if p.StartsOver || !p.present.exists {
		set["createdAt"] = d.CreatedAt
		unset["pausedAt"] = ""
	}
	carries := p.present.exists && len(p.Put.Carried) > 0
	assign(set, unset, "inherits", p.present.revision, carries)
	assign(set, unset, "carriedFrom", p.carriedFrom(), carries)
	assign(set, unset, "options", d.Options, len(d.Options) > 0)
	assign(set, unset, "missed", d.Missed, d.Missed > 0)
	planned := d.Planned
	if carries {
		planned = p.Planned(p.heirs)
	}
	assign(set, unset, "planned", planned, planned > 0)
	assign(set, unset, "failed", d.Failed, d.Failed > 0)
	assign(set, unset, "trouble", d.Trouble, d.Trouble != "")
	assign(set, unset, "cursor", d.Cursor, !d.Cursor.IsZero())
	assign(set, unset, "expandAt", d.ExpandAt, !d.ExpandAt.IsZero() && !p.staysPaused())
	return bson.M{"$set": set, "$unset": unset}
}

// assign makes an update set a field, or unset it.
func assign(set, unset bson.M, field string, value any, given bool) {
	if given {
		set[field] = value
	} else {
		unset[field] = ""
	}
}

// afterFlip rewrites the carried-over occurrences under the new revision, counts the held ones, and deletes the other
// occurrences of the replaced revision.
func (s *Store) afterFlip(ctx context.Context, p *put) error {
	if !p.present.exists {
		return nil
	}
	p.Replaced, p.Paused = p.present.revision, p.staysPaused()
	if len(p.Put.Carried) > 0 {
		if err := s.inherit(ctx, p.Job.Name, p.present.revision, p.Job.Revision); err != nil {
			return err
		}
		if err := s.countCarried(ctx, p); err != nil {
			return err
		}
	}
	replaced := bson.M{"revision": p.present.revision}
	held, err := s.occurrences.CountDocuments(ctx, both(replaced, held(p.Now)))
	if err != nil {
		return mapError(err)
	}
	p.InFlight += int(held)
	// The put is done. If this fails, the remaining occurrences are orphans.
	_, _ = s.occurrences.DeleteMany(ctx, replaced)
	return nil
}

// tidy deletes the occurrences of puts that have certainly failed. Those that can't be deleted stay as orphans.
func (s *Store) tidy(ctx context.Context, puts []*put) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tidyWithin) // the put's time may be over
	defer cancel()
	for part := range slices.Chunk(puts, chunk) {
		revisions := make([]job.Revision, len(part))
		for i, p := range part {
			revisions[i] = p.Job.Revision
		}
		_, _ = s.occurrences.DeleteMany(ctx, bson.M{"revision": in(revisions)})
	}
}
