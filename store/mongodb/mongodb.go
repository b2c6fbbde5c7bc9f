// Package mongodb keeps Carillon's documents in a MongoDB database: a standalone server, a replica set or a sharded
// cluster, version 4.4 or later. Any number of replicas share it.
//
// The store relies on atomic writes of single documents only. It uses no transactions, so a standalone server will do.
// The order of its writes keeps the documents consistent:
//
//   - An occurrence carries its job's revision, and fires only while the job document has the same revision. Put
//     inserts the new occurrences, then flips the job document from the revision that it read to the new one, then
//     deletes the replaced revision's occurrences. This guarded write orders racing Puts and Cancels of a job.
//   - An orphan is an occurrence whose revision no job has, as a crash during Put leaves it behind. A claim that meets
//     an orphan puts it back, since its Put may be about to flip, and drops it after an hour.
//   - The next occurrences of a recurring schedule fire only once the job's cursor has reached them. Advance inserts
//     them, then moves the cursor. A claim that meets an occurrence beyond the cursor puts it back, and never drops it
//     for that reason.
//   - Every change of a job by a client gives the job a new version. A flip is guarded by the version, so it never
//     overwrites a change that another client has made since the job was read.
//   - A client's request takes effect by an update that is bounded by the server's time. An insertion can't be bounded,
//     so a job is created by the update of a stub, and a triggered or expanded occurrence is staged before it counts.
//   - An occurrence that the replaced job and the new job share is named an heir before the flip. From the flip on it
//     counts as the new revision's. The first caller that meets it afterwards rewrites it as such.
//   - A claim is guarded by the occurrence still being due, and a settlement by the claim's token.
//
// All reads go to the primary with read concern local. Writes are acknowledged by a majority unless the URL says
// otherwise. An orphan is dropped only after a read with read concern majority.
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

	// oldest is the oldest format that is upgraded to this one. Documents of format 3 are also valid in format 4; but a
	// program that reads only 3 would mistake a carried-over occurrence for an orphan and drop it, and a stub for a job.
	// Since 5, tenants and replicas are records, see [Store.upgrade].
	oldest = 3

	// laneDead is the lane of dead letters, so that one index serves them and the pending occurrences.
	laneDead = ""

	// parallel bounds the commands that one call has under way at once, and chunk the documents or ids that one command
	// names.
	parallel = 16
	chunk    = 1000

	// tidyWithin bounds the time for cleaning up after a failed call.
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
	committed   *mongo.Collection                         // the jobs, read with read concern majority
	topology    atomic.Pointer[event.TopologyDescription] // the driver's latest view of it
	expected    expected
	lost        lost
	// brokenConnections counts those that broke, or that the driver withdrew because another one did.
	brokenConnections atomic.Int64
}

// Open connects to the server that a URL such as "mongodb://user:password@host/database?replicaSet=rs0" names and makes
// the indexes. The database is "carillon" if the URL names none. The user needs the role readWrite on it.
//
// A server that can't be reached within serverSelectionTimeoutMS (5 s unless the URL says otherwise) is an error that
// wraps [store.ErrUnavailable]. No error shows the URL's password.
func Open(ctx context.Context, rawURL string) (*Store, error) { return OpenThrough(ctx, rawURL, nil) }

// OpenThrough is [Open] with a dialer of its own, by which the driver makes all connections. Nil is the driver's.
func OpenThrough(ctx context.Context, rawURL string, dialer options.ContextDialer) (*Store, error) {
	u, database, opts, err := parseURL(rawURL)
	if err != nil {
		return nil, err
	}
	if dialer != nil {
		opts.SetDialer(dialer)
	}
	s := &Store{lost: newLost()}
	opts.SetServerMonitor(&event.ServerMonitor{
		TopologyDescriptionChanged: func(e *event.TopologyDescriptionChangedEvent) { s.topology.Store(&e.NewDescription) },
	})
	opts.SetPoolMonitor(&event.PoolMonitor{Event: func(e *event.PoolEvent) {
		if e.Type == event.ConnectionPoolCleared || e.Type == event.ConnectionClosed && e.Reason != event.ReasonIdle {
			s.brokenConnections.Add(1)
		}
	}})
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
		err = s.explain(err, u.User() != "") // by the servers that are known: none are, once it is abandoned
		s.abandon()
		return nil, fmt.Errorf("open MongoDB database %s: %w", u, err)
	}
	return s, nil
}

// prepare refuses a database that can't be used, and makes the indexes. Repeating it, or running it in several replicas
// at once, changes nothing.
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
		return fmt.Errorf("its format is %d, which only a pre-release of carillon wrote and this one does not read; "+
			"name a new database", version)
	}
	for _, index := range []struct {
		of     *mongo.Collection
		keys   bson.D
		sparse bool // has no entries for documents without any of the fields
	}{
		{s.jobs, keys("expiresAt"), false},
		// Jobs to expand. Jobs that don't recur have no entry.
		{s.jobs, keys("expandAt"), true},
		// Claims, the lanes, and the list of dead letters, which have no dueAt.
		{s.occurrences, keys("lane", "dueAt", "_id"), false},
		// The occurrences of all lanes by due time.
		{s.occurrences, keys("dueAt", "lane"), false},
		// The records that expire.
		{s.records, keys("expiresAt"), true},
		// The occurrences of a job; and under the empty revision, standalone occurrences and dead letters by key. Claims
		// and settlements other than bury change none of these fields, so a scan of this index misses no occurrence.
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

// indexByRevision returns the fields of the index by which a job's occurrences are found.
func indexByRevision() bson.D { return keys("revision", "tenant", "key", "_id") }

// claimDatabase marks a new database as Carillon's and returns the format that it has afterwards.
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

// tellsTime reads the server's time and checks that the server can bound updates and deletions by it.
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

// Close closes all connections. Commands under way get 5 s to complete. Claims that are still to be given back become
// due again when their leases end. A second call does nothing.
func (s *Store) Close() error {
	s.lost.close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	err := s.client.Disconnect(ctx)
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, mongo.ErrClientDisconnected) {
		return nil // commands still under way were cut off, or it is closed already
	}
	return err
}

// abandon closes all connections at once. With a deadline, the driver would wait for the commands under way, and keep a
// processor busy meanwhile.
func (s *Store) abandon() {
	s.lost.close()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = s.client.Disconnect(ctx)
}

// Now implements [store.Queue]: it returns the time of the primary, or of the router of a sharded cluster.
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
