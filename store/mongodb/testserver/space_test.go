package main

import (
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

// A write that finds no space is refused by MongoDB's code for that, and nothing else is: neither another fault, nor a
// document with the same text.
func TestNoSpace(t *testing.T) {
	ctx, data := t.Context(), t.TempDir()
	uri, _ := start(t, "127.0.0.1:0", data)
	coll := connect(t, uri).Database("test").Collection("docs")
	if _, err := coll.InsertOne(ctx, bson.D{{Key: "_id", Value: 1}, {Key: "is", Value: noSpace}}); err != nil {
		t.Fatal(err)
	}

	file, err := sql.Open("sqlite", filepath.Join(data, "test.sqlite"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var table string
	if err := file.QueryRowContext(ctx, "SELECT table_name FROM _ferretdb_collections").Scan(&table); err != nil {
		t.Fatal(err)
	}
	for says, code := range map[string]int{noSpace: codeOutOfDiskSpace, "another fault": codeInternalError} {
		if _, err := file.ExecContext(ctx, fmt.Sprintf(
			`CREATE TRIGGER fails BEFORE UPDATE ON %q BEGIN SELECT RAISE(FAIL, '%s'); END`, table, says)); err != nil {
			t.Fatal(err)
		}
		_, err := coll.UpdateByID(ctx, 1, bson.D{{Key: "$set", Value: bson.D{{Key: "n", Value: 1}}}})
		refused, ok := errors.AsType[mongo.ServerError](err)
		if !ok || !refused.HasErrorCode(code) || len(refused.ErrorCodes()) != 1 {
			t.Errorf("%s: %v, want code %d", says, err, code)
		}
		if _, err := file.ExecContext(ctx, "DROP TRIGGER fails"); err != nil {
			t.Fatal(err)
		}
	}
	var found bson.M
	if err := coll.FindOne(ctx, bson.D{}).Decode(&found); err != nil || found["is"] != noSpace {
		t.Errorf("the document is %v, %v", found, err)
	}
}
