package mongodb

import (
	"context"
	"errors"
	"slices"

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
// the revision that it replaces. The driver sends the rest of the context's time with every command as its maxTimeMS, so
// a flip that is late is refused by the server too. A flip that failed without an answer may have happened all the same.
// Its occurrences are therefore left: they are the job's, or orphans.
func (s *Store) Put(ctx context.Context, puts []store.Put) []store.PutResult {
	ctx, cancel := context.WithTimeout(ctx, store.PutWithin) // for callers that set no limit
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
	id      string       // of the job document
	present job.Revision // of the job document, when it was last read; empty if there was none
}

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
		if !p.If.Holds(p.present) {
			p.Err = store.ErrPrecondition // early, before anything is written; the flip decides
			continue
		}
		going = append(going, p)
	}
	if err := s.insertOccurrences(ctx, going); err != nil {
		fail(going, err)
		s.tidy(ctx, going) // no flip was tried, so nothing will ever want them
		return
	}
	var absent, replacing []*put
	for _, p := range going {
		if p.present == "" {
			absent = append(absent, p)
		} else {
			replacing = append(replacing, p)
		}
	}
	replacing = append(replacing, s.create(ctx, absent)...)

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

// readPresent notes the present revisions of jobs.
func (s *Store) readPresent(ctx context.Context, puts []*put) error {
	for part := range slices.Chunk(puts, chunk) {
		ids := make([]string, len(part))
		for i, p := range part {
			ids[i] = p.id
		}
		present, err := s.revisions(ctx, ids)
		if err != nil {
			return err
		}
		for _, p := range part {
			p.present = present[p.id]
		}
	}
	return nil
}

// revisions reads the revisions of those jobs that exist.
func (s *Store) revisions(ctx context.Context, ids []string) (map[string]job.Revision, error) {
	found, err := find[jobDocument](ctx, s.jobs, bson.M{"_id": in(ids)}, options.Find().SetProjection(bson.M{"revision": 1}))
	if err != nil {
		return nil, err
	}
	revisions := make(map[string]job.Revision, len(found))
	for i := range found {
		revisions[found[i].ID] = job.Revision(found[i].Revision)
	}
	return revisions, nil
}

// insertOccurrences inserts the occurrences of all puts. One that is there already is the same.
func (s *Store) insertOccurrences(ctx context.Context, puts []*put) error {
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
	for _, p := range puts {
		for i := range p.Occurrences {
			documents = append(documents, newOccurrenceDocument(&p.Occurrences[i]))
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

// create flips jobs that did not exist, all at once. It returns those that do exist after all: another Put was faster.
func (s *Store) create(ctx context.Context, puts []*put) (taken []*put) {
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
		fail(puts, mapError(err))
		return nil
	}
	if bulk.WriteConcernError != nil {
		fail(puts, mapError(err))
	}
	for _, e := range bulk.WriteErrors {
		p := puts[e.Index]
		if mongo.IsDuplicateKeyError(e.WriteError) {
			p.present = "" // not known
			taken = append(taken, p)
		} else {
			p.Err = mapError(e.WriteError)
		}
	}
	return taken
}

// flip makes one put's revision its job's, whether or not there is such a job, by a write that fails if the job has
// changed since its revision was read. Each failure means that another Put or a Cancel has succeeded.
func (s *Store) flip(ctx context.Context, p *put) error {
	for ; ; p.present = "" {
		if p.present == "" {
			present, err := s.revisions(ctx, []string{p.id})
			if err != nil {
				s.tidy(ctx, []*put{p})
				return err
			}
			p.present = present[p.id]
		}
		if !p.If.Holds(p.present) {
			s.tidy(ctx, []*put{p})
			return store.ErrPrecondition
		}
		if p.present == "" {
			_, err := s.jobs.InsertOne(ctx, newJobDocument(&p.Job))
			if mongo.IsDuplicateKeyError(err) {
				continue
			}
			return mapError(err)
		}
		result, err := s.jobs.UpdateOne(ctx, bson.M{"_id": p.id, "revision": p.present}, replacement(&p.Job))
		if err != nil {
			return mapError(err)
		}
		if result.MatchedCount > 0 {
			return s.deleteReplaced(ctx, p)
		}
	}
}

// replacement turns a job document into another job's of the same name.
func replacement(j *job.Job) bson.M {
	d := newJobDocument(j)
	set := bson.M{
		"revision": d.Revision, "updatedAt": d.UpdatedAt, "expiresAt": d.ExpiresAt, "callback": d.Callback, "schedule": d.Schedule,
	}
	if len(d.Options) == 0 {
		return bson.M{"$set": set, "$unset": bson.M{"options": ""}}
	}
	set["options"] = d.Options
	return bson.M{"$set": set}
}

// deleteReplaced counts what is held of the revision that a flip replaced, and deletes its occurrences.
func (s *Store) deleteReplaced(ctx context.Context, p *put) error {
	replaced := bson.M{"revision": p.present}
	held, err := s.occurrences.CountDocuments(ctx, both(replaced, held(p.Now)))
	if err != nil {
		return mapError(err)
	}
	p.Replaced, p.InFlight = p.present, int(held)
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
