package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
)

// indexIDs creates indexes by which SQLite finds the documents of a database by id. FerretDB creates an index on
// _ferretdb_sjson->"_id", but queries _ferretdb_sjson->'$._id', a different expression to SQLite. Without these
// indexes, SQLite scans the whole collection for each document to update or delete, and a test with a few thousand
// documents takes minutes on a busy machine. It adds the names of the collections that have one to indexed.
func indexIDs(ctx context.Context, data, database string, indexed map[string]bool) (err error) {
	u := url.URL{
		Scheme:   "file",
		Opaque:   filepath.Join(data, database+".sqlite"),
		RawQuery: url.Values{"mode": {"rw"}, "_pragma": {"busy_timeout(10000)", "synchronous(off)"}}.Encode(),
	}
	db, err := sql.Open("sqlite", u.String())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()

	rows, err := db.QueryContext(ctx, "SELECT name, table_name FROM _ferretdb_collections")
	if err != nil {
		return err
	}
	defer rows.Close()
	tables := make(map[string]string) // by the collection's name
	for rows.Next() {
		var name, table string
		if err := rows.Scan(&name, &table); err != nil {
			return err
		}
		tables[name] = table
	}
	if err := rows.Err(); err != nil {
		return err
	}
	for name, table := range tables {
		if indexed[name] {
			continue
		}
		_, err := db.ExecContext(ctx, fmt.Sprintf(
			`CREATE INDEX IF NOT EXISTS %q ON %q (_ferretdb_sjson->'$._id')`, table+"_by_id", table))
		if err != nil {
			return err
		}
		indexed[name] = true
	}
	return nil
}
