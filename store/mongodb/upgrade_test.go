//go:build services

package mongodb_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/mongodb"
	"github.com/carillon-scheduler/carillon/store/replicas"
	"github.com/carillon-scheduler/carillon/store/tenants"
)

// databaseBefore makes a database of an older format, with tenants and replicas in collections of their own.
func databaseBefore(t *testing.T, format, n int) (db database, want []job.Tenant) {
	t.Helper()
	db = newDatabase(t)
	insert := func(collection string, documents ...any) {
		t.Helper()
		if _, err := db.Collection(collection).InsertMany(t.Context(), documents); err != nil {
			t.Fatal(err)
		}
	}
	var documents []any
	for i := range n {
		tenant := job.Tenant{Name: fmt.Sprintf("t%05d", i), FirstSeen: epoch.Add(time.Duration(i) * time.Second)}
		d := bson.M{"_id": tenant.Name, "firstSeen": tenant.FirstSeen, "settings": nil}
		if i%100 == 7 {
			tenant.Settings = job.TenantSettings{Weight: 2, Paused: true}
			d["settings"], d["set"] = tenant.Settings.Encode(), true
		}
		documents, want = append(documents, d), append(want, tenant)
	}
	insert("tenants", documents...)
	insert("replicas", bson.M{"_id": "gone", "until": epoch}, bson.M{"_id": "a", "until": epoch.Add(24 * 365 * 100 * time.Hour)})
	insert("meta", bson.M{"_id": "format", "version": format})
	return db, want
}

func (db database) format(t *testing.T) (meta struct {
	Version   int      `bson:"version"`
	Upgrade   bson.Raw `bson:"upgrade"`
	Leftovers bool     `bson:"leftovers"`
}) {
	t.Helper()
	if err := db.Collection("meta").FindOne(t.Context(), bson.M{"_id": "format"}).Decode(&meta); err != nil {
		t.Fatal(err)
	}
	return meta
}

// expectTenants expects a store to know tenants, and a database to have no documents of the older format.
func (db database) expectTenants(t *testing.T, s store.Store, want []job.Tenant) {
	t.Helper()
	all := tenants.New(s)
	if got, err := all.List(t.Context(), "", len(want)+1); err != nil || !slices.Equal(got, want) {
		t.Errorf("%d of %d tenants are known, %v, and they are not the same", len(got), len(want), err)
	}
	settings := 0
	for _, tenant := range want {
		if tenant.Settings != (job.TenantSettings{}) {
			settings++
		}
	}
	if set, err := all.Settings(t.Context(), "", len(want)); err != nil || len(set) != settings {
		t.Errorf("%d have settings, %v; want %d", len(set), err, settings)
	}
	if n, err := replicas.Count(t.Context(), s, time.Now()); err != nil || n != 1 {
		t.Errorf("%d replicas, %v", n, err)
	}
	if meta := db.format(t); meta.Version != 5 || meta.Upgrade != nil || meta.Leftovers {
		t.Errorf("the format is %+v", meta)
	}
	names, err := db.ListCollectionNames(t.Context(), bson.M{})
	if err != nil || slices.Contains(names, "tenants") || slices.Contains(names, "replicas") {
		t.Errorf("the collections are %q, %v", names, err)
	}
}

// TestOpenMovesTenants: the tenants and replicas that older formats keep in separate collections become records.
// Several replicas that start at once move them once. A client's change after one of the replicas serves is not undone.
func TestOpenMovesTenants(t *testing.T) {
	for _, c := range []struct{ format, n int }{{3, 20}, {4, 200}} {
		t.Run(fmt.Sprint("format ", c.format), func(t *testing.T) {
			db, want := databaseBefore(t, c.format, c.n)
			want[7].Settings = job.TenantSettings{}
			var group sync.WaitGroup
			for range 4 {
				group.Go(func() {
					s, err := mongodb.Open(t.Context(), db.url)
					if err != nil {
						t.Error(err)
						return
					}
					defer s.Close()
					if err := tenants.New(s).Set(t.Context(), want[7].Name, job.TenantSettings{}, epoch); err != nil {
						t.Error(err)
					}
				})
			}
			group.Wait()
			db.expectTenants(t, db.open(t), want)
		})
	}
}

// TestOpenMovesTheRest: a move that is interrupted anywhere is completed by the next one. Until its lease ends, the
// first move may still be under way, and no other begins.
func TestOpenMovesTheRest(t *testing.T) {
	const n = 20
	for writes := 0; ; writes++ { // until there is no later write to interrupt
		db, want := databaseBefore(t, 4, n)
		r := db.relay(t)
		left := writes
		broken := false
		r.set(func(c command) verdict {
			if !slices.Contains([]string{"insert", "update", "delete", "drop"}, c.name) || c.collection == "jobs" {
				return pass
			}
			if left--; left >= 0 {
				return pass
			}
			broken = true
			return cutAfter
		})
		s, err := mongodb.Open(t.Context(), r.url)
		if err == nil {
			_ = s.Close()
		}
		r.mu.Lock()
		done := !broken
		r.mu.Unlock()
		if done != (err == nil) || err != nil && !errors.Is(err, store.ErrUnavailable) {
			t.Fatalf("open that breaks off after %d writes answers %v", writes, err)
		}
		if done {
			if writes < 8 {
				t.Errorf("there are %d writes: the test shows nothing", writes)
			}
			return
		}
		if db.format(t).Upgrade != nil { // its lease has not ended
			waits := db.relay(t)
			looks, opened := make(chan struct{}, 1000), make(chan error, 1)
			waits.set(func(c command) verdict {
				if c.name == "find" && c.collection == "meta" {
					looks <- struct{}{}
				}
				return pass
			})
			go func() {
				s, err := mongodb.Open(t.Context(), waits.url)
				if err == nil {
					err = s.Close()
				}
				opened <- err
			}()
			for range 4 {
				<-looks
			}
			if v := db.format(t).Version; v != 4 || len(opened) > 0 {
				t.Errorf("after %d writes, another replica does not wait: the format is %d", writes, v)
			}
			if _, err := db.Collection("meta").UpdateOne(t.Context(), bson.M{"_id": "format"},
				bson.M{"$set": bson.M{"upgrade.until": time.Now().Add(-time.Hour)}}); err != nil {
				t.Fatal(err)
			}
			if err := <-opened; err != nil {
				t.Errorf("after %d writes, open answers %v", writes, err)
			}
		}
		db.expectTenants(t, db.open(t), want)
	}
}

// TestOpenLosesTheMove: a replica whose lease has passed to another does not raise the format, because the other may
// still be moving.
func TestOpenLosesTheMove(t *testing.T) {
	for _, write := range []int{1, 2} { // the one of the tenants and the one of the replicas, which come last
		t.Run(fmt.Sprint("at write ", write), func(t *testing.T) { losesTheMove(t, write) })
	}
}

func losesTheMove(t *testing.T, write int) {
	db, want := databaseBefore(t, 4, 20)
	r := db.relay(t)
	lost, looks := false, make(chan struct{}, 1000)
	r.set(func(c command) verdict {
		switch {
		case lost && c.name == "find" && c.collection == "meta":
			looks <- struct{}{}
		case !lost && c.name == "update" && c.collection == "records":
			if write--; write > 0 {
				return pass
			}
			lost = true // from now on another replica has the lease for ever
			if _, err := db.Collection("meta").UpdateOne(t.Context(), bson.M{"_id": "format"},
				bson.M{"$set": bson.M{"upgrade": bson.M{"token": "another", "until": time.Now().Add(time.Hour)}}}); err != nil {
				t.Error(err)
			}
		}
		return pass
	})
	opened := make(chan error, 1)
	go func() {
		s, err := mongodb.Open(t.Context(), r.url)
		if err == nil {
			err = s.Close()
		}
		opened <- err
	}()
	for range 4 {
		select {
		case <-looks:
		case err := <-opened:
			t.Fatalf("it is opened, %v", err)
		}
	}
	if meta := db.format(t); meta.Version != 4 {
		t.Errorf("it raises the format to %d", meta.Version)
	}
	if _, err := db.Collection("meta").UpdateOne(t.Context(), bson.M{"_id": "format"},
		bson.M{"$set": bson.M{"upgrade.until": time.Now().Add(-time.Hour)}}); err != nil {
		t.Fatal(err)
	}
	if err := <-opened; err != nil {
		t.Error(err)
	}
	db.expectTenants(t, db.open(t), want)
}
