package main

import (
	"database/sql"
	"path/filepath"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

// Once a store has made its indexes, SQLite uses one to find the document that FerretDB updates or deletes. So it does
// when the collection is made again.
func TestDocumentsAreFoundByID(t *testing.T) {
	dir := t.TempDir()
	uri, _ := start(t, "127.0.0.1:0", dir)
	coll := connect(t, uri).Database("test").Collection("docs")
	testFoundByID(t, dir, coll)
	if err := coll.Drop(t.Context()); err != nil {
		t.Fatal(err)
	}
	testFoundByID(t, dir, coll)
	if err := coll.Database().Drop(t.Context()); err != nil {
		t.Fatal(err)
	}
	testFoundByID(t, dir, coll)
}

func testFoundByID(t *testing.T, dir string, coll *mongo.Collection) {
	t.Helper()
	for range 2 { // as each replica does
		if _, err := coll.Indexes().CreateOne(t.Context(), mongo.IndexModel{Keys: bson.D{{Key: "a", Value: 1}}}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := coll.InsertOne(t.Context(), bson.D{{Key: "_id", Value: "x"}}); err != nil {
		t.Fatal(err)
	}
	if n, err := coll.DeleteOne(t.Context(), bson.D{{Key: "_id", Value: "x"}}); err != nil || n.DeletedCount != 1 {
		t.Errorf("deleted %v, %v", n, err)
	}

	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "test.sqlite")+"?mode=ro")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var table, plan string
	var ignored any
	if err := db.QueryRow("SELECT table_name FROM _ferretdb_collections WHERE name = 'docs'").Scan(&table); err != nil {
		t.Fatal(err)
	}
	err = db.QueryRow("EXPLAIN QUERY PLAN DELETE FROM "+table+" WHERE _ferretdb_sjson->'$._id' = ?", "x").
		Scan(&ignored, &ignored, &ignored, &plan)
	if err != nil || !strings.Contains(plan, "_by_id") {
		t.Errorf("the plan is %q, %v", plan, err)
	}
}
