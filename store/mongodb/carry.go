package mongodb

import (
	"context"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// heirDocument is what an occurrence is to be of another revision, by which its job's may be replaced. It counts once the
// job has that revision.
type heirDocument struct {
	Position   int    `bson:"position,omitempty"`
	Sequence   bool   `bson:"sequence,omitempty"` // it is a part of one
	Step       int    `bson:"step,omitempty"`
	Subscriber string `bson:"subscriber,omitempty"`
	Priority   string `bson:"priority,omitempty"` // its code; taken unless the occurrence was held then
	// Now, in milliseconds, is the time of the submission, by which it is told whether the occurrence was held.
	Now int64 `bson:"now"`
}

// heirOf is the field of an occurrence that has what it is to be of a revision.
func heirOf(revision job.Revision) string { return "heirs." + string(revision) }

// inherit makes an occurrence that was read one of its job's revision, if it is an heir of it. It changes nothing in the
// store: that is for whoever replaced the job, or changes it next.
func (d *occurrenceDocument) inherit(revision string) {
	h, ok := d.Heirs[revision]
	if !ok || d.Revision == "" {
		return
	}
	d.Revision, d.Position, d.Step, d.Subscriber, d.Heirs = revision, h.Position, h.step(), h.Subscriber, nil
}

func (h *heirDocument) step() *int {
	if !h.Sequence {
		return nil
	}
	return &h.Step
}

// nameHeirs notes at the occurrences that are to be carried over what they will be. Until the flip that means nothing, and
// if there never is one, it means nothing for ever.
func (s *Store) nameHeirs(ctx context.Context, p *put) error {
	ids := make(map[heirDocument][]string)
	for i := range p.Put.Carried {
		o := &p.Put.Carried[i].As
		h := heirDocument{Position: o.Position, Priority: o.Priority.Code(), Now: p.Now.UnixMilli()}
		if o.Part != nil {
			h.Sequence, h.Step, h.Subscriber = true, o.Part.Step, o.Part.Subscriber
		}
		ids[h] = append(ids[h], p.Put.Carried[i].ID.String())
	}
	var writes []mongo.WriteModel
	for h, all := range ids {
		for part := range slices.Chunk(all, chunk) {
			writes = append(writes, mongo.NewUpdateManyModel().SetHint(indexByID).
				SetFilter(bson.M{"_id": in(part), "revision": p.present.revision, "lane": anyLane()}).
				SetUpdate(bson.M{"$set": bson.M{heirOf(p.Job.Revision): h}}))
		}
	}
	return bulkWrite(ctx, s.occurrences, writes)
}

// inheritAll makes what jobs have carried over their own, where a put has not come to it yet, or has broken off before.
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

// inherit makes the heirs among a replaced revision's occurrences those of the revision that has replaced it. Since that is
// so already, nobody names more of them, and it can be done by several at once, and again.
func (s *Store) inherit(ctx context.Context, name job.Name, from, to job.Revision) error {
	heirs := bson.M{"revision": from, "lane": anyLane(), heirOf(to): bson.M{"$exists": true}}
	cursor, err := s.occurrences.Find(ctx, heirs, options.Find().SetProjection(bson.M{heirOf(to): 1}).SetBatchSize(chunk))
	if err != nil {
		return mapError(err)
	}
	defer func() { _ = cursor.Close(ctx) }()
	ids := make(map[heirDocument][]string)
	for n := 0; cursor.Next(ctx); {
		var d occurrenceDocument
		if err := cursor.Decode(&d); err != nil {
			return err
		}
		h := d.Heirs[string(to)]
		ids[h] = append(ids[h], d.ID)
		if n++; n%chunk == 0 {
			if err := s.inheritSome(ctx, name.Tenant, heirs, to, ids); err != nil {
				return err
			}
			clear(ids)
		}
	}
	if err := cursor.Err(); err != nil {
		return mapError(err)
	}
	if err := s.inheritSome(ctx, name.Tenant, heirs, to, ids); err != nil {
		return err
	}
	_, err = s.jobs.UpdateOne(ctx, bson.M{"_id": jobID(name), "revision": to, "inherits": from}, bson.M{"$unset": bson.M{"inherits": ""}})
	return mapError(err)
}

// inheritSome makes heirs what they are to be: first those that were not held, in their new lane, then the others, in the
// lane that they have.
func (s *Store) inheritSome(ctx context.Context, tenant string, heirs bson.M, to job.Revision, ids map[heirDocument][]string) error {
	var free, rest []mongo.WriteModel
	for h, ids := range ids {
		of := both(heirs, bson.M{"_id": in(ids)})
		update := func(more bson.M) bson.M {
			set, unset := both(bson.M{"revision": to}, more), bson.M{"heirs": ""}
			assign(set, unset, "position", h.Position, h.Position != 0)
			assign(set, unset, "step", h.Step, h.Sequence)
			assign(set, unset, "subscriber", h.Subscriber, h.Subscriber != "")
			return bson.M{"$set": set, "$unset": unset}
		}
		lane := job.Lane{Tenant: tenant, Priority: job.PriorityOf(h.Priority)}
		free = append(free, mongo.NewUpdateManyModel().SetHint(indexByID).SetFilter(both(of, notHeld(time.UnixMilli(h.Now)))).
			SetUpdate(update(bson.M{"priority": h.Priority, "lane": lane.String()})))
		rest = append(rest, mongo.NewUpdateManyModel().SetHint(indexByID).SetFilter(of).SetUpdate(update(nil)))
	}
	if err := bulkWrite(ctx, s.occurrences, free); err != nil {
		return err
	}
	return bulkWrite(ctx, s.occurrences, rest)
}

// countCarried counts what was carried over and is still pending, and what of that is held.
func (s *Store) countCarried(ctx context.Context, p *put) error {
	ids := make([]string, len(p.Put.Carried))
	for i := range p.Put.Carried {
		ids[i] = p.Put.Carried[i].ID.String()
	}
	for part := range slices.Chunk(ids, chunk) {
		found, err := find[occurrenceDocument](ctx, s.occurrences, bson.M{"_id": in(part), "revision": p.Job.Revision},
			options.Find().SetProjection(bson.M{"token": 1, "dueAt": 1}))
		if err != nil {
			return err
		}
		p.PutResult.Carried += len(found)
		for i := range found {
			if found[i].Token != "" && found[i].DueAt.After(p.Now) {
				p.InFlight++
			}
		}
	}
	return nil
}

// mostCarriedFrom bounds how many revisions a job remembers to have carried something over from. A claim's outcome names
// the revision that it was claimed under, and comes within a lease.
const mostCarriedFrom = 32

// carriedFrom are the revisions that the job will have carried something over from.
func (p *put) carriedFrom() []string {
	all := append([]string{string(p.present.revision)}, p.present.carriedFrom...)
	return all[:min(len(all), mostCarriedFrom)]
}

// jobOf matches the job of an occurrence that was claimed under a revision: the job that has it, or has since replaced it and
// carried some of it over.
func jobOf(id string, revision job.Revision) bson.M {
	return bson.M{"_id": id, "$or": bson.A{bson.M{"revision": revision}, bson.M{"carriedFrom": revision}}}
}

// again reads those occurrences again that seem to be orphans, and then their jobs: between the reading of an occurrence
// and that of its job, the job may have been replaced and the occurrence carried over.
func (s *Store) again(ctx context.Context, won []occurrenceDocument, targets map[string]target, token string) error {
	at := make(map[string]int)
	for i := range won {
		if d := &won[i]; d.isOrphan(targets) {
			at[d.ID] = i
		}
	}
	if len(at) == 0 {
		return nil
	}
	ids := make([]string, 0, len(at))
	for id := range at {
		ids = append(ids, id)
	}
	found, err := find[occurrenceDocument](ctx, s.occurrences, bson.M{"_id": in(ids), "token": token}, options.Find())
	if err != nil {
		return err
	}
	for _, d := range found {
		won[at[d.ID]] = d
	}
	fresh, err := s.targets(ctx, found)
	if err != nil {
		return err
	}
	for i := range found {
		id := found[i].jobID()
		if t, ok := fresh[id]; ok {
			targets[id] = t
		} else {
			delete(targets, id)
		}
	}
	return nil
}

// isOrphan tells whether an occurrence's job is gone or has another revision.
func (d *occurrenceDocument) isOrphan(targets map[string]target) bool {
	if d.Revision == "" {
		return false
	}
	t, ok := targets[d.jobID()]
	_, heir := d.Heirs[t.revision]
	return !ok || t.revision != d.Revision && !heir
}

// stillOrphan matches an orphan that a claim holds, unless it has been carried over since it was read: to the revision
// that its job had then, or from there on.
func (r *returned) stillOrphan() bson.M {
	filter := bson.M{"_id": r.ID, "token": r.Token, "revision": r.Revision}
	if r.jobRevision != "" {
		filter[heirOf(job.Revision(r.jobRevision))] = absent()
	}
	return filter
}

// returnHeirs gives back those of a claim's orphans that were none after all: it holds them still.
func (s *Store) returnHeirs(ctx context.Context, p store.ClaimParams, back []returned) {
	var writes []mongo.WriteModel
	for _, r := range back {
		if r.orphan {
			writes = append(writes, updateOf(bson.M{"_id": r.ID, "token": r.Token}, unclaim(p.Now)))
		}
	}
	_ = bulkWrite(ctx, s.occurrences, writes)
}
