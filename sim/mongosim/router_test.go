package mongosim_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/sim/mongosim"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/mongodb"
	"github.com/carillon-scheduler/carillon/store/storetest"
)

// everywhere has the commands that a router sends to all shards, by the collection and the fields of the filter, with
// the reason. docs/stores.md tells the operator of them.
var everywhere = map[string]string{
	// The claim loop.
	"find occurrences dueAt lane": "a claim reads the due occurrences of a lane: a seek in the index of each shard",
	"find occurrences $or":        "a replica looks for the lanes with something due: a seek in the index of each shard",
	"find jobs expandAt":          "the jobs to expand, in the same way",
	"find jobs expiresAt version": "the sweep reads the jobs that expire, in the same way",

	"delete jobs expiresAt version":        "the sweep deletes stubs of jobs",
	"delete occurrences dueAt lane staged": "the sweep deletes what triggers left behind",

	// The occurrences of a job, which are on all shards.
	"aggregate occurrences revision":                                     "the sweep looks whether finished jobs have anything pending",
	"aggregate occurrences key revision tenant":                          "the number of a job's occurrences",
	"aggregate occurrences key lane revision tenant":                     "the same, of those that belong to no revision",
	"aggregate occurrences dueAt revision token":                         "the number of a job's held occurrences",
	"find occurrences revision":                                          "the first pending occurrence of each job of a page",
	"find occurrences revision timestamp":                                "those that an expansion has left behind, if ticks passed since",
	"find occurrences _id key revision tenant":                           "a page of a job's occurrences",
	"find occurrences _id key lane revision tenant":                      "the same, of those that belong to no revision",
	"find occurrences key lane revision tenant":                          "names that have such occurrences only, and their cancellation",
	"find occurrences $or key revision tenant":                           "the cancellation of those",
	"find occurrences heirs lane revision":                               "those that a replacement carries over",
	"delete occurrences revision":                                        "those of a cancelled or replaced job",
	"delete occurrences $nor revision":                                   "the same, but for those that are held",
	"update occurrences $expr dueAt key revision tenant timestamp token": "those that a resume brings forward",
	"find occurrences key revision tenant timestamp token":               "the due times that they have then",

	// Pages for people, and moves.
	"aggregate occurrences dueAt lane":                    "the backlog of a lane",
	"aggregate occurrences lane":                          "the same",
	"find occurrences _id dueAt failedAt lane":            "a page of dead letters",
	"find occurrences _id dueAt lane revision tenant":     "the same, of a tenant",
	"find occurrences _id dueAt key lane revision tenant": "the same, of a job",
	"find occurrences _id":                                "an export",
	"find jobs _id version":                               "a page of jobs",
}

// TestStore: the store for MongoDB passes its suite on the simulated server, so the server answers as a real one does. This
// is where the suite runs in CI; in a long test it runs on one server too, see TestOneServer, and on another kind of server.
//
// The server is a sharded cluster, whose router refuses to change one document without being told its shard. Other commands
// come in between two shards that a command reads, and two documents that it changes. A command that names no documents
// goes to all shards; those commands are known, with the reason.
func TestStore(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector sees the same in other tests")
	}
	var lock sync.Mutex
	seen := map[mongosim.Route]int{}
	t.Run("suite", func(t *testing.T) {
		storetest.Run(t, func(t *testing.T) storetest.Opener {
			server := mongosim.NewRouter(restless{})
			dialer := server.Dialer("test")
			for range 2 { // the second time it changes nothing
				if err := mongodb.ShardThrough(t.Context(), mongosim.RouterURL, dialer); err != nil {
					t.Fatal(err)
				}
			}
			t.Cleanup(func() {
				lock.Lock()
				defer lock.Unlock()
				for route, n := range server.Routes() {
					seen[route] += n
				}
			})
			return func() (store.Store, error) { return mongodb.OpenThrough(t.Context(), mongosim.RouterURL, dialer) }
		})
	})
	if t.Failed() {
		return // commands may lack
	}
	all := map[string]bool{}
	for route, n := range seen {
		if shape := strings.Join([]string{route.Command, route.Collection, route.Fields}, " "); route.Everywhere {
			all[shape] = true
			if everywhere[shape] == "" {
				t.Errorf("%q goes to all shards, %d times; name the document's _id, or give the reason", shape, n)
			}
		}
	}
	for shape := range everywhere {
		if !all[shape] {
			t.Errorf("%q is not sent to all shards", shape)
		}
	}
}

// TestShardWithoutRouter: a server that is no router has no shards.
func TestShardWithoutRouter(t *testing.T) {
	server := mongosim.New(calm{})
	err := mongodb.ShardThrough(context.Background(), mongosim.URL, server.Dialer("test"))
	if !errors.Is(err, mongodb.ErrNoRouter) || !strings.Contains(err.Error(), "mongos") {
		t.Fatal(err)
	}
}

// TestShardWithJobs: jobs that are there before stay.
func TestShardWithJobs(t *testing.T) {
	server := mongosim.NewRouter(calm{})
	dialer := server.Dialer("test")
	s, err := mongodb.OpenThrough(t.Context(), mongosim.RouterURL, dialer)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var documents []store.Document
	for key := range strings.SplitSeq("a b c d e f g h", " ") {
		j := job.Job{Name: job.Name{Tenant: "acme", Key: key}, Revision: job.NewRevision(time.Now()), CreatedAt: time.Now()}
		j.Version = j.Revision
		documents = append(documents, store.Document{Job: &j})
	}
	if _, err := s.Import(t.Context(), documents); err != nil {
		t.Fatal(err)
	}
	if err := mongodb.ShardThrough(t.Context(), mongosim.RouterURL, dialer); err != nil {
		t.Fatal(err)
	}
	jobs, err := s.Jobs(t.Context(), store.JobFilter{Tenant: "acme", Limit: 100})
	if err != nil || len(jobs) != len(documents) {
		t.Fatal(len(jobs), err)
	}
}
