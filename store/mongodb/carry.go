package mongodb

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"golang.org/x/sync/errgroup"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// heirDocument is the form that an occurrence takes under another revision which may replace its job's. It takes effect
// when the job has that revision.
type heirDocument struct {
	Position   int    `bson:"position,omitempty"`
	Sequence   bool   `bson:"sequence,omitempty"` // it is part of a sequence: the next two fields are set
	Step       int    `bson:"step,omitempty"`
	Subscriber string `bson:"subscriber,omitempty"`
	// Priority is its code. The occurrence gets it unless it was held at the time of the submission, which is Now, in
	// milliseconds.
	Priority string `bson:"priority,omitempty"`
	Now      int64  `bson:"now"`
}

// heirOf returns the name of an occurrence's field that has its form under a revision.
func heirOf(revision job.Revision) string { return "heirs." + string(revision) }

// inherit changes the read document of an occurrence to its form under its job's revision, if it is an heir of that
// revision. It changes nothing in the store: the caller that replaced the job, or the next one that changes it, does
// that.
func (d *occurrenceDocument) inherit(revision string) {
	h, ok := d.Heirs[revision]
	if !ok || d.Revision == "" {
		return
	}
	d.Revision, d.Position, d.Step, d.Subscriber, d.Heirs = revision, h.Position, nil, h.Subscriber, nil
	if h.Sequence {
		d.Step = &h.Step
	}
}

// heirs has the ids of occurrences by their form under another revision.
type heirs map[heirDocument][]string

// updates returns the statements that carry the heirs over, in batches. Each batch is sent as one command.
func (h heirs) updates(update func(d heirDocument, ids []string) mongo.WriteModel) (batches [][]mongo.WriteModel) {
	var batch []mongo.WriteModel
	n := 0
	for d, ids := range h {
		for part := range slices.Chunk(ids, chunk) {
			batch = append(batch, update(d, part))
			if n += len(part); n >= chunk {
				batches = append(batches, batch)
				batch, n = nil, 0
			}
		}
	}
	if len(batch) > 0 {
		batches = append(batches, batch)
	}
	return batches
}

// nameHeirs notes, at each occurrence to be carried over, its form under the new revision, and counts these
// occurrences. The notes have no effect before the flip, and never if there is no flip.
func (s *Store) nameHeirs(ctx context.Context, p *put) error {
	all := make(heirs)
	for i := range p.Put.Carried {
		o := &p.Put.Carried[i].As
		h := heirDocument{Position: o.Position, Priority: o.Priority.Code(), Now: p.Now.UnixMilli()}
		if o.Part != nil {
			h.Sequence, h.Step, h.Subscriber = true, o.Part.Step, o.Part.Subscriber
		}
		all[h] = append(all[h], p.Put.Carried[i].ID.String())
	}
	named, err := s.writeAll(ctx, all.updates(func(h heirDocument, ids []string) mongo.WriteModel {
		return mongo.NewUpdateManyModel().SetHint(indexByID).
			SetFilter(bson.M{"_id": in(ids), "revision": p.present.revision, "lane": anyLane()}).
			SetUpdate(bson.M{"$set": bson.M{heirOf(p.Job.Revision): h}})
	}))
	p.heirs = named
	return err
}

// writeAll makes independent writes to occurrences, several batches at a time, and returns the number of documents
// matched.
func (s *Store) writeAll(ctx context.Context, batches [][]mongo.WriteModel) (matched int, err error) {
	var n atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for _, writes := range batches {
		group.Go(func() error {
			result, err := s.occurrences.BulkWrite(ctx, writes, options.BulkWrite().SetOrdered(false))
			if err == nil {
				n.Add(result.MatchedCount)
			}
			return mapError(err)
		})
	}
	err = group.Wait()
	return int(n.Load()), err
}

// inheritAll rewrites the occurrences that jobs have carried over, if the put that replaced the job has not rewritten
// them yet or was interrupted.
func (s *Store) inheritAll(ctx context.Context, jobs []jobDocument) error {
	for i := range jobs {
		d := &jobs[i]
		if d.Inherits == "" {
			continue
		}
		name := job.Name{Tenant: d.Tenant, Key: d.Key}
		if err := s.inherit(ctx, name, job.Revision(d.Inherits), job.Revision(d.Revision)); err != nil {
			return err
		}
	}
	return nil
}

// inherit rewrites the heirs among a replaced revision's occurrences under the revision that has replaced it. No more
// heirs are named after the replacement, so several callers may do this concurrently and repeatedly.
func (s *Store) inherit(ctx context.Context, name job.Name, from, to job.Revision) error {
	still := bson.M{"revision": from, "lane": anyLane(), heirOf(to): bson.M{"$exists": true}}
	cursor, err := s.occurrences.Find(ctx, still,
		options.Find().SetProjection(bson.M{heirOf(to): 1}).SetBatchSize(chunk))
	if err != nil {
		return mapError(err)
	}
	defer func() { _ = cursor.Close(ctx) }()
	const most = 16 * chunk // ids are read at a time
	for more := true; more; {
		all, n := make(heirs), 0
		for n < most {
			if more = cursor.Next(ctx); !more {
				break
			}
			var d occurrenceDocument
			if err := cursor.Decode(&d); err != nil {
				return err
			}
			h := d.Heirs[string(to)]
			all[h] = append(all[h], d.ID)
			n++
		}
		if err := s.inheritSome(ctx, name.Tenant, still, to, all, n); err != nil {
			return err
		}
	}
	if err := cursor.Err(); err != nil {
		return mapError(err)
	}
	_, err = s.jobs.UpdateOne(ctx, bson.M{"_id": jobID(name), "revision": to, "inherits": from},
		bson.M{"$unset": bson.M{"inherits": ""}})
	return mapError(err)
}

// inheritSome rewrites n heirs: first those that were not held, in their new lane, then the others, in their present
// lane.
func (s *Store) inheritSome(ctx context.Context, tenant string, still bson.M, to job.Revision, all heirs, n int) error {
	update := func(h heirDocument, ids []string, free bool) mongo.WriteModel {
		filter := both(still, bson.M{"_id": in(ids)})
		set, unset := bson.M{"revision": to}, bson.M{"heirs": ""}
		assign(set, unset, "position", h.Position, h.Position != 0)
		assign(set, unset, "step", h.Step, h.Sequence)
		assign(set, unset, "subscriber", h.Subscriber, h.Subscriber != "")
		if free {
			filter = both(filter, notHeld(time.UnixMilli(h.Now)))
			set["priority"] = h.Priority
			set["lane"] = job.Lane{Tenant: tenant, Priority: job.PriorityOf(h.Priority)}.String()
		}
		return mongo.NewUpdateManyModel().SetHint(indexByID).SetFilter(filter).
			SetUpdate(bson.M{"$set": set, "$unset": unset})
	}
	for _, free := range []bool{true, false} {
		matched, err := s.writeAll(ctx, all.updates(func(h heirDocument, ids []string) mongo.WriteModel {
			return update(h, ids, free)
		}))
		if err != nil || matched == n {
			return err
		}
	}
	return nil
}

// countCarried counts the carried-over occurrences that are still pending, and the held ones among them. Another put
// may have carried them over once more since.
func (s *Store) countCarried(ctx context.Context, p *put) error {
	ids := make([]string, len(p.Put.Carried))
	for i := range p.Put.Carried {
		ids[i] = p.Put.Carried[i].ID.String()
	}
	var carried, held atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for part := range slices.Chunk(ids, chunk) {
		group.Go(func() error {
			carriedOver := bson.M{
				"_id": in(part), "tenant": p.Job.Tenant, "key": p.Job.Key,
				"revision": bson.M{"$nin": bson.A{p.present.revision, ""}}, // a dead letter has none
			}
			found, err := find[occurrenceDocument](ctx, s.occurrences, carriedOver,
				options.Find().SetProjection(bson.M{"token": 1, "dueAt": 1}))
			carried.Add(int64(len(found)))
			for i := range found {
				if found[i].Token != "" && found[i].DueAt.After(p.Now) {
					held.Add(1)
				}
			}
			return err
		})
	}
	err := group.Wait()
	p.PutResult.Carried, p.InFlight = int(carried.Load()), int(held.Load())
	return err
}

// mostCarriedFrom bounds the number of revisions that a job remembers as sources of carried-over occurrences. An
// outcome names the revision of its claim, and arrives within a lease.
const mostCarriedFrom = 32

// carriedFrom returns the revisions from which the job will have carried occurrences over.
func (p *put) carriedFrom() []string {
	all := append([]string{string(p.present.revision)}, p.present.carriedFrom...)
	return all[:min(len(all), mostCarriedFrom)]
}

// jobOf matches the job of an occurrence that was claimed under a revision: the job that has the revision, or a later
// one that has carried occurrences over from it.
func jobOf(id string, revision job.Revision) bson.M {
	return bson.M{"_id": id, "$or": bson.A{bson.M{"revision": revision}, bson.M{"carriedFrom": revision}}}
}

// again rereads the apparent orphans of a claim, and then their jobs: between the reading of an occurrence and that of
// its job, the job may have been replaced and the occurrence carried over.
func (s *Store) again(ctx context.Context, a *attempt) error {
	at := make(map[string]int)
	var ids []string
	for i := range a.won {
		if d := &a.won[i]; d.Revision != "" && !d.isOf(a.targets[d.jobID()].revision) {
			at[d.ID], ids = i, append(ids, d.ID)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	found, err := find[occurrenceDocument](ctx, s.occurrences, bson.M{"_id": in(ids), "token": a.token}, options.Find())
	if err != nil {
		return err
	}
	for _, d := range found {
		a.won[at[d.ID]] = d
		delete(a.targets, d.jobID())
	}
	return s.readTargets(ctx, a, found)
}

// isOf reports whether an occurrence belongs to a revision, or is an heir of it, provided that its job has that
// revision.
func (d *occurrenceDocument) isOf(revision string) bool {
	_, heir := d.Heirs[revision]
	return d.Revision == revision || heir
}

// stillOrphan matches an orphan that a claim holds, unless it has been carried over since it was read: to the revision
// that its job had then, or from that revision to another one.
func (r *returned) stillOrphan() bson.M {
	filter := bson.M{"_id": r.ID, "token": r.Token, "revision": r.Revision}
	if r.jobRevision != "" {
		filter[heirOf(job.Revision(r.jobRevision))] = absent()
	}
	return filter
}

// returnHeirs gives back the occurrences of a claim that turned out not to be orphans; the claim still holds them.
func (s *Store) returnHeirs(ctx context.Context, p store.ClaimParams, back []returned) {
	var writes []mongo.WriteModel
	for _, r := range back {
		if r.orphan {
			writes = append(writes, updateOf(bson.M{"_id": r.ID, "token": r.Token}, unclaim(p.Now)))
		}
	}
	_, _ = bulkWrite(ctx, s.occurrences, writes)
}
