//go:build services

package mongodb_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// TestQueriesUseIndexes asks the server's planner about each frequent query. On a server without a planner it checks
// that the indexes exist.
func TestQueriesUseIndexes(t *testing.T) {
	db := newDatabase(t)
	s := db.open(t)
	for collection, want := range map[string][]string{
		"jobs":        {"_id", "expandAt", "expiresAt"},
		"occurrences": {"_id", "dueAt,lane", "lane,dueAt,_id", "revision,tenant,key,_id"},
		"records":     {"_id", "expiresAt"},
	} {
		cursor, err := db.Collection(collection).Indexes().List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var indexes []struct{ Key bson.D }
		if err := cursor.All(t.Context(), &indexes); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, index := range indexes {
			var fields []string
			for _, field := range index.Key {
				fields = append(fields, field.Key)
			}
			got = append(got, strings.Join(fields, ","))
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("indexes of %s are %q, want %q", collection, got, want)
		}
	}
	if !plans(t, db) {
		return
	}
	relayed, r := db.relayed(t)
	mustPut(t, s, newPut("k", epoch, 0, time.Second, time.Hour))
	r.set(func(c command) verdict {
		if slices.Contains([]string{"find", "aggregate", "findAndModify"}, c.name) && c.collection != "meta" {
			expectIndexed(t, db, c)
		}
		return pass
	})
	// A resume's write; the planner gets it as the equivalent query.
	expectIndexed(t, db, command{name: "find", collection: "occurrences", body: raw(t, bson.D{
		{Key: "find", Value: "occurrences"},
		{Key: "filter", Value: bson.M{"revision": "r", "tenant": "t", "key": "k", "timestamp": bson.M{"$lte": epoch}, "dueAt": bson.M{"$gt": epoch}}},
	})})
	claimed := mustClaim(t, relayed, epoch, 10)
	for _, after := range []store.LaneDue{{}, {DueAt: epoch}, {Lane: job.DefaultLane, DueAt: epoch}} {
		if _, err := relayed.DueLanes(t.Context(), store.DueParams{After: after, Until: epoch.Add(time.Minute), Limit: 10}); err != nil {
			t.Error(err)
		}
	}
	if _, err := store.CountAll(t.Context(), relayed, epoch.Add(time.Hour)); err != nil {
		t.Error(err)
	}
	if _, err := relayed.Count(t.Context(), epoch, []job.Lane{job.DefaultLane}, 10); err != nil {
		t.Error(err)
	}
	if found, err := relayed.Sample(t.Context(), job.DefaultLane, epoch, 10); err != nil || len(found) == 0 {
		t.Errorf("sampled %d, %v: the test shows nothing", len(found), err)
	}
	change := store.RecordChange{
		Collection: "things", Key: "k", Version: job.NewRevision(epoch), Body: []byte("1"), ExpiresAt: epoch.Add(time.Hour), Now: epoch,
	}
	if err := relayed.WriteRecords(t.Context(), []store.RecordChange{change})[0]; err != nil {
		t.Error(err)
	}
	for _, filter := range []store.RecordFilter{{After: "a"}, {Prefix: "k"}, {Keys: []string{"k", "l"}}} {
		filter.Collection, filter.Limit, filter.Now = "things", 10, epoch
		if page, err := relayed.Records(t.Context(), filter); err != nil || len(page) != 1 {
			t.Errorf("%d records, %v: the test shows nothing", len(page), err)
		}
	}
	if err := relayed.Settle(t.Context(), []store.Settlement{settlement(claimed[0], store.Bury)}); err != nil {
		t.Error(err)
	}
	mustPut(t, relayed, newPut("k", epoch, time.Hour))
	mustPut(t, relayed, newCrontab("recurring", epoch, "@every 1s"))
	mustAdvance(t, relayed, mustExpand(t, relayed, epoch.Add(time.Minute)))
	pause(t, relayed, epoch)
	mustClaim(t, relayed, epoch.Add(time.Hour), 10)
	resume(t, relayed, epoch)
	if err := trigger(t, relayed); err != nil {
		t.Error(err)
	}
	for _, c := range mustClaim(t, relayed, epoch.Add(time.Minute), 10) {
		mustSettle(t, relayed, c, store.Miss)
	}
	if _, err := relayed.Sweep(t.Context(), store.SweepParams{Now: epoch.Add(time.Hour), Again: 1, FailedBefore: epoch, Limit: 10}); err != nil {
		t.Error(err)
	}
	mustRedrive(t, relayed, claimed[0].ID)
	if records := exported(t, relayed, 1); len(records) == 0 {
		t.Error("nothing is exported: the test shows nothing")
	}
	if _, err := relayed.Cancel(t.Context(), []job.Name{name("k")}, store.Asked{Now: epoch}); err != nil {
		t.Error(err)
	}
}

// TestOpenWithoutIndexes: the documents of an earlier version are found like those of this one.
func TestOpenWithoutIndexes(t *testing.T) {
	db := newDatabase(t)
	s := db.open(t)
	mustPut(t, s, newPut("k", epoch, 0, time.Second))
	if err := db.Collection("occurrences").Indexes().DropOne(t.Context(), "dueAt_1_lane_1"); err != nil {
		t.Fatal(err)
	}
	s = db.open(t)
	page, err := s.DueLanes(t.Context(), store.DueParams{Until: epoch.Add(time.Hour), Limit: 10})
	if err != nil || len(page.Lanes) != 1 || !page.Lanes[0].DueAt.Equal(epoch) {
		t.Errorf("told %v, %v", page, err)
	}
}

func raw(t *testing.T, d bson.D) bson.Raw {
	t.Helper()
	b, err := bson.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestCountLanesReadsNoMore: lanes are counted by the first fields of the claim index, with two commands at most for a
// lane. The commands never request more entries of a lane than the limit.
func TestCountLanesReadsNoMore(t *testing.T) {
	db := newDatabase(t)
	relayed, r := db.relayed(t)
	mustPut(t, relayed, newPut("k", epoch, 0, time.Second, 2*time.Second, time.Hour, 2*time.Hour, 3*time.Hour))
	const pending = 6
	for limit := 1; limit <= pending+1; limit++ {
		for _, now := range []time.Duration{-time.Millisecond, 0, time.Second, 2 * time.Hour, 3 * time.Hour} {
			commands, read := 0, 0
			r.set(func(c command) verdict {
				if c.collection != "occurrences" {
					return pass
				}
				commands++
				read += reads(t, db, c)
				return pass
			})
			if _, err := relayed.Count(t.Context(), epoch.Add(now), []job.Lane{job.DefaultLane}, limit); err != nil {
				t.Fatal(err)
			}
			if commands < 1 || commands > 2 || read != min(limit, pending) {
				t.Errorf("up to %d at %s: %d commands read %d entries", limit, now, commands, read)
			}
		}
	}
}

// reads returns the number of entries of the claim index that the server reads for a count.
func reads(t *testing.T, db database, c command) int {
	var body struct {
		Pipeline []struct {
			Match bson.M `bson:"$match"`
			Limit int    `bson:"$limit"`
		} `bson:"pipeline"`
	}
	if err := bson.Unmarshal(c.body, &body); err != nil || c.name != "aggregate" || len(body.Pipeline) < 2 || body.Pipeline[1].Limit < 1 {
		t.Errorf("no count with a limit: %s, %v", c.body, err)
		return 0
	}
	match := body.Pipeline[0].Match
	_, ofLane := match["lane"].(string)
	if _, inOrder := match["dueAt"]; !ofLane || len(match) > 1 && !inOrder || len(match) > 2 {
		t.Errorf("the claim index does not begin with %v", match)
	}
	return min(db.count(t, match), body.Pipeline[1].Limit)
}

// plans reports whether the server is a real MongoDB, which explains its plans, rather than one that only speaks its
// protocol.
func plans(t *testing.T, db database) bool {
	t.Helper()
	info, err := db.RunCommand(t.Context(), bson.M{"buildInfo": 1}).Raw()
	if err != nil {
		t.Fatal(err)
	}
	_, err = info.LookupErr("ferretdb")
	return err != nil
}

// expectIndexed asks the server for the plan of a query.
func expectIndexed(t *testing.T, db database, c command) {
	elements, err := c.body.Elements()
	if err != nil {
		t.Error(err)
		return
	}
	var query bson.D
	for _, e := range elements {
		if slices.Contains([]string{"find", "filter", "sort", "projection", "limit", "hint", "aggregate", "pipeline", "cursor", "findAndModify", "query", "update"}, e.Key()) {
			query = append(query, bson.E{Key: e.Key(), Value: e.Value()})
		}
	}
	plan, err := db.RunCommand(t.Context(), bson.D{{Key: "explain", Value: query}, {Key: "verbosity", Value: "queryPlanner"}}).Raw()
	if err != nil {
		t.Errorf("explain %v: %v", query, err)
		return
	}
	if used := stages(plan); slices.Contains(used, "COLLSCAN") || slices.Contains(used, "SORT") {
		t.Errorf("%s of %s scans or sorts:\n%s", c.name, c.collection, plan)
	}
}

// stages lists the stages of the plan that the server has chosen, wherever this kind of deployment puts them.
func stages(plan bson.Raw) (all []string) {
	elements, err := plan.Elements()
	if err != nil {
		return nil
	}
	for _, e := range elements {
		if inner, ok := e.Value().DocumentOK(); ok && e.Key() != "rejectedPlans" {
			all = append(all, stages(inner)...)
		}
		if inner, ok := e.Value().ArrayOK(); ok && e.Key() != "rejectedPlans" {
			all = append(all, stages(bson.Raw(inner))...)
		}
		if stage, ok := e.Value().StringValueOK(); ok && e.Key() == "stage" {
			all = append(all, stage)
		}
	}
	return all
}
