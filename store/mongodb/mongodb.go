// Package mongodb keeps Carillon's documents in a MongoDB database: a standalone server, a replica set or a sharded
// cluster, version 4.4 or later. Any number of replicas share it.
//
// Only the write of one document is atomic here, and no transaction is used, so that a standalone server will do. The
// order of the writes makes up for it:
//
//   - A job's occurrences carry its revision, and fire only while the job document has the same one. Put inserts the new
//     occurrences, then flips the job document from the revision that it read to the new one, then deletes the replaced
//     revision's occurrences. Racing Puts and Cancels of one job decide who came first by that one guarded write.
//   - Whatever a crash of a Put leaves behind is an orphan: an occurrence of a revision that is no job's. A claim that
//     meets one puts it back, since its Put may be about to flip, and drops it after an hour.
//   - The next occurrences of a schedule that recurs fire only once its job's cursor has come to them. Advance inserts
//     them, then moves the cursor. A claim that meets one beyond the cursor puts it back, and never drops it for that.
//   - Every change that a client makes of a job gives it a new version. A flip is guarded by the version, so what another
//     client has changed since the job was read is not lost in it.
//   - What a client asks for takes effect by a write that is bounded by the server's time, never by an insertion, which can't
//     be: a job is created by the update of a stub of it, and a triggered or expanded occurrence is staged before it counts.
//   - What a replaced job and the new one both have is named an heir before the flip, and counts as the new revision's from
//     the flip on; it is made that by whoever comes to it first.
//   - Claims and settlements are guarded by what they rely on: a claim by the occurrence still being due, a settlement by
//     the claim's token.
//
// All reads go to the primary, and see what it has. Writes are acknowledged by a majority unless the URL says
// otherwise. Nothing is dropped for what a read of less than a majority has told.
package mongodb

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"

	"github.com/carillon-scheduler/carillon/store"
)

const (
	// format is the version of the documents and indexes, kept in the document formatID of the collection meta.
	format   = 5
	formatID = "format"

	// oldest is the oldest format that is brought up to this one. What is of format 3 is also of format 4; but a program
	// that reads only 3 would take an occurrence that was carried over for an orphan, and so drop it, and a stub for a
	// job. Since 5, tenants and replicas are records, see [Store.upgrade].
	oldest = 3

	// laneDead is the lane of dead letters, so that one index serves them and what is pending.
	laneDead = ""

	// parallel bounds the commands that one call has under way at once, and chunk the documents or ids that one command
	// names.
	parallel = 16
	chunk    = 1000

	// tidyWithin bounds work that is done for tidiness after a call has failed.
	tidyWithin = 2 * time.Second
)

// Store implements [store.Store].
type Store struct {
	client      *mongo.Client
	jobs        *mongo.Collection
	occurrences *mongo.Collection
	records     *mongo.Collection
	meta        *mongo.Collection
	clock       clock
	committed   *mongo.Collection                         // the jobs, as a majority has them
	topology    atomic.Pointer[event.TopologyDescription] // as the driver has seen it last
	expected    expected
	lost        lost
}

// Open connects to the server that a URL such as "mongodb://user:password@host/database?replicaSet=rs0" names and makes
// the indexes. The database is "carillon" if the URL names none. The user needs the role readWrite on it.
//
// A server that can't be reached within serverSelectionTimeoutMS (5 s unless the URL says otherwise) is an error that
// wraps [store.ErrUnavailable]. No error shows the URL's password.
func Open(ctx context.Context, rawURL string) (*Store, error) {
	u, database, opts, err := parseURL(rawURL)
	if err != nil {
		return nil, err
	}
	s := &Store{lost: newLost()}
	opts.SetServerMonitor(&event.ServerMonitor{
		TopologyDescriptionChanged: func(e *event.TopologyDescriptionChangedEvent) { s.topology.Store(&e.NewDescription) },
	})
	if s.client, err = mongo.Connect(opts); err != nil {
		return nil, u.Fault(err)
	}
	db := s.client.Database(database)
	s.jobs = db.Collection("jobs")
	s.committed = s.jobs.Clone(options.Collection().SetReadConcern(readconcern.Majority()))
	s.occurrences = db.Collection("occurrences")
	s.records = db.Collection("records")
	s.meta = db.Collection("meta")
	if err := s.prepare(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("open MongoDB database %s: %w", u, s.explain(err, u.User() != "")), s.Close())
	}
	return s, nil
}

// prepare refuses a database that can't be used, and makes the indexes. Doing it again, or in several replicas at once,
// changes nothing.
func (s *Store) prepare(ctx context.Context) error {
	if err := s.tellsTime(ctx); err != nil {
		return err
	}
	version, err := s.readFormat(ctx)
	if err != nil {
		return err
	}
	if version == 0 {
		if version, err = s.claimDatabase(ctx); err != nil {
			return err
		}
	}
	if version > format {
		return fmt.Errorf("%w: its format is %d, this one reads up to %d; upgrade carillon", store.ErrFormat, version, format)
	}
	if version < oldest {
		return fmt.Errorf("its format is %d, which only a pre-release of carillon wrote and this one does not read; name a new database", version)
	}
	for _, index := range []struct {
		of     *mongo.Collection
		keys   bson.D
		sparse bool // has no entries for documents without any of the fields
	}{
		{s.jobs, keys("expiresAt"), false},
		// What is to be expanded. Most jobs may be none of it for ever, and cost nothing here.
		{s.jobs, keys("expandAt"), true},
		// Claims, the lanes, and the list of dead letters, which have no dueAt.
		{s.occurrences, keys("lane", "dueAt", "_id"), false},
		// What becomes due, whoever's it is.
		{s.occurrences, keys("dueAt", "lane"), false},
		// The records that expire.
		{s.records, keys("expiresAt"), true},
		// The occurrences of a job, and by the empty revision those that stand on their own and dead letters by key.
		// None of these fields changes when an occurrence is claimed or settled otherwise than by burying it, so a scan
		// by them misses none.
		{s.occurrences, indexByRevision(), false},
	} {
		model := mongo.IndexModel{Keys: index.keys}
		if index.sparse {
			model.Options = options.Index().SetSparse(true)
		}
		if _, err := index.of.Indexes().CreateOne(ctx, model); err != nil {
			return mapError(err)
		}
	}
	if err := s.upgrade(ctx); err != nil {
		return err
	}
	return s.dropLeftovers(ctx)
}

// indexByRevision are the fields of the index by which a job's occurrences are found.
func indexByRevision() bson.D { return keys("revision", "tenant", "key", "_id") }

// claimDatabase marks a new database as ours and answers the format that it then has.
func (s *Store) claimDatabase(ctx context.Context) (version int, err error) {
	for _, collection := range []*mongo.Collection{s.jobs, s.occurrences, s.records} {
		err := collection.FindOne(ctx, bson.M{}, options.FindOne().SetProjection(bson.M{"_id": 1})).Err()
		if errors.Is(err, mongo.ErrNoDocuments) {
			continue
		}
		if err != nil {
			return 0, mapError(err)
		}
		// Another replica, which started at the same moment, may have marked it since, and put jobs.
		if version, err = s.readFormat(ctx); version > 0 || err != nil {
			return version, err
		}
		return 0, fmt.Errorf("it has a collection %q of another program; name a database of its own", collection.Name())
	}
	_, err = s.meta.InsertOne(ctx, bson.M{"_id": formatID, "version": format})
	if mongo.IsDuplicateKeyError(err) {
		return s.readFormat(ctx)
	}
	return format, mapError(err)
}

// tellsTime sees to it that the server judges the time of updates and deletions, before any is asked for, and learns
// it.
func (s *Store) tellsTime(ctx context.Context) error {
	if _, err := s.Now(ctx); err != nil {
		return err
	}
	ctx, cancel := within(ctx)
	defer cancel()
	return s.inTime(ctx, func(ctx context.Context, inTime bson.M) (bool, error) {
		nothing := both(bson.M{"_id": "nothing"}, inTime)
		if _, err := s.meta.UpdateOne(ctx, nothing, bson.M{"$set": bson.M{"version": 0}}); err != nil {
			return false, fmt.Errorf("the server can't bound an update by its time ($$NOW): %w", err)
		}
		if _, err := s.meta.DeleteOne(ctx, nothing); err != nil {
			return false, fmt.Errorf("the server can't bound a deletion by its time ($$NOW): %w", err)
		}
		return true, nil
	})
}

// readFormat reads the version of the format; zero if there is none.
func (s *Store) readFormat(ctx context.Context) (int, error) {
	var doc struct {
		Version int `bson:"version"`
	}
	err := s.meta.FindOne(ctx, bson.M{"_id": formatID}).Decode(&doc)
	if errors.Is(err, mongo.ErrNoDocuments) {
		return 0, nil
	}
	return doc.Version, mapError(err)
}

// Close ends all connections. Commands under way get a few seconds to end. Claims that are still to be given back wait
// for their leases' ends.
func (s *Store) Close() error {
	s.lost.close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	err := s.client.Disconnect(ctx)
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, mongo.ErrClientDisconnected) {
		return nil // what was still under way has been cut off; or it is closed already
	}
	return err
}

// Now implements [store.Queue]: it answers the time of the primary, or of the router of a sharded cluster.
func (s *Store) Now(ctx context.Context) (time.Time, error) {
	var hello struct {
		LocalTime time.Time `bson:"localTime"`
	}
	err := s.jobs.Database().RunCommand(ctx, bson.D{{Key: "hello", Value: 1}}).Decode(&hello)
	if err != nil {
		return time.Time{}, mapError(err)
	}
	s.clock.note(hello.LocalTime)
	return hello.LocalTime, nil
}

// keys names the fields of an index or a sort, all ascending, or of a projection.
func keys(fields ...string) bson.D {
	d := make(bson.D, len(fields))
	for i, f := range fields {
		d[i] = bson.E{Key: f, Value: 1}
	}
	return d
}
