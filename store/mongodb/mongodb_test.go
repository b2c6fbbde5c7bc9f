//go:build services

package mongodb_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/carillon-scheduler/carillon/history/historytest"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/memory"
	"github.com/carillon-scheduler/carillon/store/mongodb"
	"github.com/carillon-scheduler/carillon/store/storetest"
)

// TestStore runs the suites on the server. This takes minutes of a processor on the server that stands in for MongoDB in
// CI, so it runs in a long test, and with CARILLON_TEST_MONGODB_SUITE=1, as on a real MongoDB. Otherwise the suites run
// on the simulated server (sim/mongosim), and the random histories of TestDifferential on this one.
func TestStore(t *testing.T) {
	t.Parallel()
	if storetest.Long() || os.Getenv("CARILLON_TEST_MONGODB_SUITE") == "1" {
		storetest.Run(t, newOpener)
		historytest.Run(t, newOpener)
	}
}

// TestDifferential: the store behaves like the reference store.
func TestDifferential(t *testing.T) {
	t.Parallel()
	storetest.Differential(t, 20, func() store.Store { return memory.New() }, newOpener)
}

func newOpener(t *testing.T) storetest.Opener {
	db := newDatabase(t)
	return func() (store.Store, error) { return mongodb.Open(context.Background(), db.url) }
}

// database is an empty database, which is removed when the test ends.
type database struct {
	*mongo.Database
	url string
}

func newDatabase(t testing.TB) database {
	t.Helper()
	server := os.Getenv("CARILLON_TEST_MONGODB_URI")
	if server == "" {
		t.Fatal("CARILLON_TEST_MONGODB_URI must be set to the address of a MongoDB server, such as mongodb://127.0.0.1:27017/")
	}
	client, err := mongo.Connect(options.Client().ApplyURI(server))
	if err != nil {
		t.Fatal(err)
	}
	name := "carillon_test_" + strings.ToLower(rand.Text())
	db := client.Database(name)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		if err := db.Drop(ctx); err != nil {
			t.Error(err)
		}
		if err := client.Disconnect(ctx); err != nil {
			t.Error(err)
		}
	})
	address, query, _ := strings.Cut(server, "?")
	url := strings.TrimSuffix(address, "/") + "/" + name
	if query != "" {
		url += "?" + query
	}
	return database{Database: db, url: url}
}

func (db database) open(t *testing.T) *mongodb.Store {
	t.Helper()
	s, err := mongodb.Open(t.Context(), db.url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// empty removes what stores have put, and has s forget it, so that both are as new. A test of many cases, one after
// another, has one database for all: to make one, with its indexes, and to open a store costs more than such a case.
func (db database) empty(t *testing.T, s *mongodb.Store) {
	t.Helper()
	for _, collection := range []string{"jobs", "occurrences", "records"} {
		if _, err := db.Collection(collection).DeleteMany(t.Context(), bson.M{}); err != nil {
			t.Fatal(err)
		}
	}
	mongodb.Expect(s, job.DefaultLane, 1) // what a claim expects that was preceded by none
}

func (db database) count(t *testing.T, filter bson.M) int {
	t.Helper()
	n, err := db.Collection("occurrences").CountDocuments(t.Context(), filter)
	if err != nil {
		t.Fatal(err)
	}
	return int(n)
}

func TestOpenRefuses(t *testing.T) {
	for _, c := range []struct {
		name, collection string
		document         bson.M
		want             string
	}{
		{"a newer format", "meta", bson.M{"_id": "format", "version": 99}, store.ErrFormat.Error()},
		{"an older format", "meta", bson.M{"_id": "format", "version": 2}, "name a new database"},
		{"another program's jobs", "jobs", bson.M{"_id": 1}, "another program"},
		{"another program's occurrences", "occurrences", bson.M{"_id": 1}, "another program"},
		{"another program's records", "records", bson.M{"_id": 1}, "another program"},
	} {
		t.Run(c.name, func(t *testing.T) {
			db := newDatabase(t)
			if _, err := db.Collection(c.collection).InsertOne(t.Context(), c.document); err != nil {
				t.Fatal(err)
			}
			s, err := mongodb.Open(t.Context(), db.url)
			if err == nil {
				_ = s.Close()
			}
			if err == nil || !strings.Contains(err.Error(), c.want) || errors.Is(err, store.ErrUnavailable) {
				t.Errorf("open answers %v, want %q", err, c.want)
			}
			if n, err := db.Collection("meta").CountDocuments(t.Context(), bson.M{"version": 5}); n != 0 || err != nil {
				t.Errorf("%d format documents were written, %v", n, err)
			}
		})
	}
}

// TestErrors: errors are recognized by their codes.
func TestErrors(t *testing.T) {
	db := newDatabase(t)
	relayed, r := db.relayed(t)
	for _, c := range []struct {
		code      int
		transient bool
	}{
		{50, true}, {64, true}, {112, true}, {189, true}, {262, true}, {10107, true}, {11600, true}, {11602, true}, {13435, true}, {14031, true},
		{2, false}, {13, false}, {18, false}, {59, false}, {11000, false},
	} {
		r.answer = bson.D{{Key: "ok", Value: 0}, {Key: "code", Value: c.code}, {Key: "errmsg", Value: "some words"}}
		r.on("find", "occurrences", 1, func() verdict { return answerBefore })
		_, err := relayed.DueLanes(t.Context(), store.DueParams{Until: epoch, Limit: 1})
		if err == nil || errors.Is(err, store.ErrUnavailable) != c.transient {
			t.Errorf("code %d answers %v", c.code, err)
		}
	}
}

// TestOpenExplains: the error of a refusal advises the operator.
func TestOpenExplains(t *testing.T) {
	db := newDatabase(t)
	for _, c := range []struct {
		name, user, options string
		code                int // in the server's answer to the first query
		want                string
	}{
		{"who it is", "user:SECRET@", "&authMechanism=PLAIN", 18, "the server refuses the user; check user, password"},
		{"missing role", "user:SECRET@", "&authMechanism=PLAIN", 13, "role readWrite"},
		{"nobody", "", "", 13, "mongodb://user:password@host"},
		{"no member", "", "&replicaSet=another", 0, "check the option replicaSet"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := db.relay(t)
			r.set(func(seen command) verdict {
				switch {
				case seen.name == "saslStart":
					r.answer = bson.D{
						{Key: "ok", Value: 1}, {Key: "conversationId", Value: 1}, {Key: "done", Value: true}, {Key: "payload", Value: []byte{}},
					}
				case seen.name == "find" && c.code != 0:
					r.answer = bson.D{{Key: "ok", Value: 0}, {Key: "code", Value: c.code}, {Key: "errmsg", Value: "some words"}}
				default:
					return pass
				}
				return answerBefore
			})
			url := r.url
			if c.user != "" {
				url = "mongodb://" + c.user + strings.TrimPrefix(url[strings.LastIndex(url, "@")+1:], "mongodb://")
			}
			if strings.Contains(c.options, "replicaSet") { // a single direct connection does not show the set
				url = strings.Replace(url, "directConnection=true&", "", 1)
			}
			url += c.options + "&serverSelectionTimeoutMS=2000"
			s, err := mongodb.Open(t.Context(), url)
			if err == nil {
				_ = s.Close()
			}
			if err == nil || !strings.Contains(err.Error(), c.want) || errors.Is(err, store.ErrUnavailable) || strings.Contains(err.Error(), "SECRET") {
				t.Errorf("open answers %v, want %q", err, c.want)
			}
		})
	}
}

// TestOrphans: an occurrence whose job has another revision is put back while its Put may still be under way, then
// dropped, and never delivered.
func TestOrphans(t *testing.T) {
	for _, hasJob := range []bool{false, true} {
		t.Run(fmt.Sprintf("with a job %v", hasJob), func(t *testing.T) {
			db := newDatabase(t)
			s := db.open(t)
			if hasJob {
				mustPut(t, s, newPut("k", epoch, 100*time.Hour))
			}
			left := newPut("k", epoch, 0).Occurrences[0]
			if _, err := db.Collection("occurrences").InsertOne(t.Context(), bson.M{
				"_id": left.ID.String(), "tenant": left.Name.Tenant, "key": left.Name.Key, "revision": left.Revision,
				"timestamp": left.Timestamp, "lane": job.DefaultLane.String(), "dueAt": left.DueAt, "attempt": 0,
			}); err != nil {
				t.Fatal(err)
			}
			found, err := s.Sample(t.Context(), job.DefaultLane, epoch, 1)
			if err != nil || len(found) != 1 || !found[0].DueAt.Equal(epoch) || found[0].Callback.Type != "" || found[0].Callback.Data != nil {
				t.Errorf("sampled %+v, %v", found, err)
			}
			for _, c := range []struct {
				age   time.Duration
				left  int
				dueAt time.Duration
			}{
				{0, 1, 10 * time.Millisecond},
				{time.Second, 1, 2 * time.Second},
				{time.Hour, 1, 2 * time.Hour},
				{2 * time.Hour, 0, 0},
			} {
				claim, err := s.Claim(t.Context(), claimParams(epoch.Add(c.age), 10))
				if err != nil {
					t.Fatal(err)
				}
				if len(claim.Occurrences) != 0 || !claim.More() {
					t.Errorf("at age %s: claimed %d, more %v", c.age, len(claim.Occurrences), claim.More())
				}
				if next := claim.Quotas[0].Next; c.left > 0 && !next.Equal(epoch.Add(c.dueAt)) {
					t.Errorf("at age %s: next is due at %s, want %s", c.age, next.Sub(epoch), c.dueAt)
				}
				if n := db.count(t, bson.M{"revision": left.Revision}); n != c.left {
					t.Errorf("at age %s: %d are left, want %d", c.age, n, c.left)
				}
				back := bson.M{
					"revision": left.Revision, "dueAt": epoch.Add(c.dueAt), "attempt": 0,
					"token": bson.M{"$exists": false}, "scheduledAt": bson.M{"$exists": false},
				}
				if n := db.count(t, back); n != c.left {
					t.Errorf("at age %s: %d are put back until %s, want %d", c.age, n, c.dueAt, c.left)
				}
			}
		})
	}
}

// epoch is the time at which the tests take place.
var epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

const lease = time.Minute

func name(key string) job.Name { return job.Name{Tenant: job.DefaultTenant, Key: key} }

func newPut(key string, now time.Time, after ...time.Duration) store.Put {
	revision := job.NewRevision(now)
	j := job.Job{
		Name: name(key), Revision: revision, Version: revision, CreatedAt: now, UpdatedAt: now, ExpiresAt: now,
		Callback: job.Callback{Type: "http", Data: []byte(`{"payload":1}`)},
	}
	for _, d := range after {
		j.Schedule.Instants = append(j.Schedule.Instants, now.Add(d))
	}
	return begin(j, now)
}

// begin returns the put of a job, with its first occurrences.
func begin(j job.Job, now time.Time) store.Put {
	b, err := j.Begin(now, job.PastFire, expansion)
	if err != nil {
		panic(err)
	}
	return store.Put{Job: j, Occurrences: b.Occurrences, Now: now}
}

// expansion keeps the occurrences of 20 s in the store.
var expansion = job.Expansion{Horizon: 20 * time.Second, CatchUpLimit: 1000}

// newCrontab returns a submission at now of a recurring job.
func newCrontab(key string, now time.Time, expression string) store.Put {
	revision := job.NewRevision(now)
	crontab, err := job.ParseCrontab(expression)
	if err != nil {
		panic(err)
	}
	return begin(job.Job{
		Name: name(key), Revision: revision, Version: revision, CreatedAt: now, UpdatedAt: now, ExpiresAt: now.AddDate(100, 0, 0),
		Callback: job.Callback{Type: "http", Data: []byte(`{"payload":1}`)}, Schedule: job.Schedule{Crontab: crontab},
	}, now)
}

func mustPut(t *testing.T, s store.Store, p store.Put) store.PutResult {
	t.Helper()
	result := s.Put(t.Context(), []store.Put{p})[0]
	if result.Err != nil {
		t.Fatal(result.Err)
	}
	return result
}

// claimParams select up to limit due occurrences of the default lane at now.
func claimParams(now time.Time, limit int) store.ClaimParams {
	return store.ClaimParams{Now: now, Lease: lease, Quotas: []store.Quota{{Lane: job.DefaultLane, Limit: limit}}}
}

func mustClaim(t *testing.T, s store.Store, now time.Time, limit int) []store.Claimed {
	t.Helper()
	claim, err := s.Claim(t.Context(), claimParams(now, limit))
	if err != nil {
		t.Fatal(err)
	}
	return claim.Occurrences
}

func mustSettle(t *testing.T, s store.Store, c store.Claimed, outcome store.Outcome) {
	t.Helper()
	if err := s.Settle(t.Context(), []store.Settlement{settlement(c, outcome)}); err != nil {
		t.Fatal(err)
	}
}

func mustRedrive(t *testing.T, s store.Store, id job.ID) {
	t.Helper()
	if n, err := s.SettleDead(t.Context(), store.DeadSettlement{Tenant: job.DefaultTenant, IDs: []job.ID{id}, Outcome: store.Redrive, Now: epoch}); n != 1 || err != nil {
		t.Fatalf("redriven %d, %v", n, err)
	}
}

func settlement(c store.Claimed, outcome store.Outcome) store.Settlement {
	return store.Settlement{
		ID: c.ID, Token: c.Token, Outcome: outcome, DueAt: epoch, At: epoch, Error: "it failed", Target: c.Target,
		Name: c.Name, Revision: c.Revision, KeepUntil: epoch,
	}
}

// A job that can't be read is claimed with a fault, beside the others.
func TestUnreadable(t *testing.T) {
	db := newDatabase(t)
	s := db.open(t)
	for _, key := range []string{"bad", "good"} {
		mustPut(t, s, newPut(key, epoch, 0))
	}
	_, err := db.Collection("jobs").UpdateOne(t.Context(), bson.M{"key": "bad"}, bson.M{"$set": bson.M{"options": []byte("nonsense")}})
	if err != nil {
		t.Fatal(err)
	}
	claimed := mustClaim(t, s, epoch, 10)
	if len(claimed) != 2 {
		t.Fatalf("claimed %d, want 2", len(claimed))
	}
	for _, c := range claimed {
		if (c.Fault != nil) != (c.Name.Key == "bad") {
			t.Errorf("%s has the fault %v", c.Name.Key, c.Fault)
		}
	}
}
