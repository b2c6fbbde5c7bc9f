package mongodb

import (
	"context"
	"errors"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"golang.org/x/sync/errgroup"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// Put implements [store.Jobs]. Jobs are put independently of each other, but for those of one name.
//
// Each job becomes what it is to be by one write, its flip: the insertion of the job document, or its update guarded by
// the version that it replaces, so that a job that was paused is still so, and no other client's change is lost. The
// driver sends the rest of the context's time with every command as its maxTimeMS, so a flip that is late is refused by
// the server too. A flip that failed without an answer may have happened all the same. Its occurrences are therefore left:
// they are the job's, or orphans.
func (s *Store) Put(ctx context.Context, puts []store.Put) []store.PutResult {
	ctx, cancel := context.WithTimeout(ctx, store.Within) // for callers that set no limit
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
	present present // the job document, when it was last read
	tried   bool    // its insertion among others was tried, and may have been made
}

// present is what has to be known of a job that is to be changed; the zero value if there is none.
type present struct {
	revision, version   job.Revision
	createdAt, pausedAt time.Time
	expands             bool      // it has a schedule that recurs and has not ended
	expandingUntil      time.Time // the end of the lease of an expansion that may still be under way
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

// putRound puts jobs of distinct names. Whatever can be is done in one command for all of them.
func (s *Store) putRound(ctx context.Context, round []*put) {
	if err := s.readPresent(ctx, round); err != nil {
		fail(round, err)
		return
	}
	var going []*put
	for _, p := range round {
		if !p.If.Holds(p.present.version) {
			p.Err = store.ErrPrecondition // early, before anything is written; the flip decides
			continue
		}
		going = append(going, p)
	}
	occurrences := make([][]job.Occurrence, len(going))
	for i, p := range going {
		occurrences[i] = p.Occurrences
	}
	if err := s.insertOccurrences(ctx, occurrences); err != nil {
		fail(going, err)
		s.tidy(ctx, going) // no flip was tried, so nothing will ever want them
		return
	}
	var creating, replacing []*put
	for _, p := range going {
		if p.present == (present{}) {
			creating = append(creating, p)
		} else {
			replacing = append(replacing, p)
		}
	}
	replacing = append(replacing, s.create(ctx, creating)...)

	var group errgroup.Group
	group.SetLimit(parallel)
	for _, p := range replacing {
		group.Go(func() error {
			p.Err = s.flip(ctx, p)
			return nil
		})
	}
	_ = group.Wait()
}

func fail(puts []*put, err error) {
	for _, p := range puts {
		p.Err = err
	}
}

// readPresent notes what jobs are at present.
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
			p.present = found[p.id]
		}
	}
	return nil
}

// present reads those of the jobs that exist, by their ids.
func (s *Store) present(ctx context.Context, ids ...string) (map[string]present, error) {
	found, err := find[jobDocument](ctx, s.jobs, bson.M{"_id": in(ids)},
		options.Find().SetProjection(bson.M{
			"revision": 1, "version": 1, "createdAt": 1, "pausedAt": 1, "cursor": 1, "expandingUntil": 1,
		}))
	if err != nil {
		return nil, err
	}
	byID := make(map[string]present, len(found))
	for i := range found {
		d := &found[i]
		byID[d.ID] = present{
			revision: job.Revision(d.Revision), version: job.Revision(d.Version),
			createdAt: d.CreatedAt, pausedAt: d.PausedAt, expands: !d.Cursor.IsZero(), expandingUntil: d.ExpandingUntil,
		}
	}
	return byID, nil
}

// insertOccurrences inserts the occurrences of several jobs. One that is there already is the same.
func (s *Store) insertOccurrences(ctx context.Context, ofJobs [][]job.Occurrence) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(4) // a job of very many instants would take too long one command after the other
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
			documents = append(documents, newOccurrenceDocument(&occurrences[i]))
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

// create flips jobs that did not exist, all at once. It returns those that are to be flipped one by one: they do exist
// after all, since another Put was faster, or one of them is too large, which stops the others too.
func (s *Store) create(ctx context.Context, puts []*put) (left []*put) {
	if len(puts) == 0 {
		return nil
	}
	documents := make([]any, len(puts))
	for i, p := range puts {
		documents[i] = newJobDocument(&p.Job)
	}
	_, err := s.jobs.InsertMany(ctx, documents, options.InsertMany().SetOrdered(false))
	bulk, ok := errors.AsType[mongo.BulkWriteException](err)
	if !ok {
		if err = mapError(err); errors.Is(err, store.ErrTooLarge) {
			for _, p := range puts {
				p.tried = true
			}
			return puts
		}
		fail(puts, err)
		return nil
	}
	if bulk.WriteConcernError != nil {
		fail(puts, mapError(err))
	}
	for _, e := range bulk.WriteErrors {
		p := puts[e.Index]
		if mongo.IsDuplicateKeyError(e.WriteError) {
			p.present = present{} // not known
			left = append(left, p)
		} else {
			p.Err = s.flipFailed(ctx, p, e.WriteError)
		}
	}
	return left
}

// flip makes one put's revision its job's, whether or not there is such a job, by a write that fails if the job has
// changed since it was read. Each failure means that another client's change of it has succeeded.
func (s *Store) flip(ctx context.Context, p *put) error {
	for ; ; p.present = (present{}) {
		if p.present == (present{}) {
			found, err := s.present(ctx, p.id)
			if err != nil {
				s.tidy(ctx, []*put{p})
				return err
			}
			p.present = found[p.id]
		}
		if p.tried && p.present.revision == p.Job.Revision {
			return nil
		}
		if !p.If.Holds(p.present.version) {
			s.tidy(ctx, []*put{p})
			return store.ErrPrecondition
		}
		if p.present == (present{}) {
			_, err := s.jobs.InsertOne(ctx, newJobDocument(&p.Job))
			if mongo.IsDuplicateKeyError(err) {
				continue
			}
			return s.flipFailed(ctx, p, err)
		}
		result, err := s.jobs.UpdateOne(ctx, bson.M{"_id": p.id, "version": p.present.version}, replacement(p))
		if err != nil {
			return s.flipFailed(ctx, p, err)
		}
		if result.MatchedCount > 0 {
			return s.deleteReplaced(ctx, p)
		}
	}
}

// flipFailed maps the error of a flip, and tidies if it tells for certain that nothing was written.
func (s *Store) flipFailed(ctx context.Context, p *put, err error) error {
	if err = mapError(err); errors.Is(err, store.ErrTooLarge) {
		s.tidy(ctx, []*put{p})
	}
	return err
}

// staysPaused tells whether the job is paused once it is put, as far as it was read.
func (p *put) staysPaused() bool { return p.present.paused() && !p.Anew }

// replacement turns a job document into another job's of the same name. One that is paused stays so, and is then not to
// be expanded, unless it is put anew. An expansion of what is replaced ends.
func replacement(p *put) bson.M {
	d := newJobDocument(&p.Job)
	set := bson.M{
		"revision": d.Revision, "version": d.Version, "updatedAt": d.UpdatedAt, "expiresAt": d.ExpiresAt,
		"callback": d.Callback, "schedule": d.Schedule,
	}
	unset := bson.M{"expandToken": "", "expandingUntil": ""}
	if p.Anew {
		set["createdAt"] = d.CreatedAt
		unset["pausedAt"] = ""
	}
	assign(set, unset, "options", d.Options, len(d.Options) > 0)
	assign(set, unset, "missed", d.Missed, d.Missed > 0)
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

// deleteReplaced counts what is held of the revision that a flip replaced, and deletes its occurrences.
func (s *Store) deleteReplaced(ctx context.Context, p *put) error {
	replaced := bson.M{"revision": p.present.revision}
	held, err := s.occurrences.CountDocuments(ctx, both(replaced, held(p.Now)))
	if err != nil {
		return mapError(err)
	}
	p.Replaced, p.InFlight, p.Paused = p.present.revision, int(held), p.staysPaused()
	// The put is done. Should this fail, what is left are orphans.
	_, _ = s.occurrences.DeleteMany(ctx, replaced)
	return nil
}

// tidy deletes the occurrences of puts that have failed for certain. What can't be deleted stays as orphans.
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
