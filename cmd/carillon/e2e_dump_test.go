//go:build services

package main_test

import (
	"bytes"
	"database/sql"
	"fmt"
	"maps"
	"net/url"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	goredis "github.com/redis/go-redis/v9"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// dumper writes all that a store of a kind has as text, and makes a store from such a text. A text does not depend on
// where the store is.
type dumper struct {
	dump    func(t *testing.T, url string) string
	restore func(t *testing.T, url, text string)
	// format finds the number of the format in a text.
	format *regexp.Regexp
}

// dumpers are those of the kinds, by name.
var dumpers = map[string]dumper{
	"sqlite":   {dumpSQLite, restoreSQLite, regexp.MustCompile(`PRAGMA user_version = (\d+)`)},
	"postgres": {dumpPostgres, restorePostgres, regexp.MustCompile(`INSERT INTO fixture\.format VALUES \((\d+),`)},
	"mongodb":  {dumpMongoDB, restoreMongoDB, regexp.MustCompile(`"_id":"format","version":\{"\$numberInt":"(\d+)"`)},
	"redis":    {dumpRedis, restoreRedis, regexp.MustCompile(`"format" "(\d+)"`)},
}

// formatOf returns the number of the format of a text.
func (d dumper) formatOf(t *testing.T, text string) (last int) {
	t.Helper()
	for _, m := range d.format.FindAllStringSubmatch(text, -1) { // PostgreSQL has those before, too
		n, err := strconv.Atoi(m[1])
		if err != nil {
			t.Fatal(err)
		}
		last = max(last, n)
	}
	if last == 0 {
		t.Fatal("the store has no format")
	}
	return last
}

// rows returns the first column of a query's rows.
func rows(t *testing.T, db *sql.DB, query string) (all []string) {
	t.Helper()
	found, err := db.QueryContext(t.Context(), query)
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	defer found.Close()
	for found.Next() {
		var one string
		if err := found.Scan(&one); err != nil {
			t.Fatal(err)
		}
		all = append(all, one)
	}
	if err := found.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

func openFile(t *testing.T, storeURL string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", strings.TrimPrefix(storeURL, "sqlite:"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func dumpSQLite(t *testing.T, storeURL string) string {
	db := openFile(t, storeURL)
	var b strings.Builder
	for _, pragma := range []string{"application_id", "user_version"} {
		fmt.Fprintf(&b, "PRAGMA %s = %s;\n", pragma, rows(t, db, "PRAGMA "+pragma)[0])
	}
	const ours = "sql IS NOT NULL AND name NOT LIKE 'sqlite_%'"
	for _, one := range rows(t, db, "SELECT sql FROM sqlite_schema WHERE "+ours+" ORDER BY type DESC, name") {
		fmt.Fprintf(&b, "%s;\n", one)
	}
	for _, table := range rows(t, db, "SELECT name FROM sqlite_schema WHERE type = 'table' AND "+ours+" ORDER BY name") {
		columns := rows(t, db, fmt.Sprintf("SELECT name FROM pragma_table_info('%s') ORDER BY cid", table))
		query := fmt.Sprintf("SELECT quote(%s) FROM %s ORDER BY 1", strings.Join(columns, ") || ', ' || quote("), table)
		for _, row := range rows(t, db, query) {
			fmt.Fprintf(&b, "INSERT INTO %s (%s) VALUES (%s);\n", table, strings.Join(columns, ", "), row)
		}
	}
	return b.String()
}

func restoreSQLite(t *testing.T, storeURL, text string) {
	db := openFile(t, storeURL)
	if _, err := db.ExecContext(t.Context(), text); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

// schemaOf splits a store's address into that of the database and the schema's name.
func schemaOf(t *testing.T, storeURL string) (database, schema string) {
	t.Helper()
	u, err := url.Parse(storeURL)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	schema = q.Get("schema")
	q.Del("schema")
	u.RawQuery = q.Encode()
	return u.String(), schema
}

func dumpPostgres(t *testing.T, storeURL string) string {
	database, schema := schemaOf(t, storeURL)
	out, err := exec.Command("/usr/lib/postgresql/15/bin/pg_dump", "--dbname="+database, "--schema="+schema, "--inserts",
		"--no-owner", "--no-privileges").Output()
	if err != nil {
		t.Fatalf("pg_dump: %v", err)
	}
	var b strings.Builder
	for line := range strings.Lines(string(out)) {
		// Comments, commands of psql, and settings of the session, which depend on the version of the server.
		other := strings.HasPrefix(line, "--") || strings.HasPrefix(line, `\`) || strings.HasPrefix(line, "SET ") ||
			strings.TrimSpace(line) == "" || strings.HasPrefix(line, "SELECT pg_catalog.set_config")
		if !other {
			b.WriteString(line)
		}
	}
	return strings.ReplaceAll(b.String(), schema, "fixture")
}

func restorePostgres(t *testing.T, storeURL, text string) {
	database, schema := schemaOf(t, storeURL)
	connection, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close(t.Context())
	script := "SET check_function_bodies = false;\n" + strings.ReplaceAll(text, "fixture", schema)
	if _, err := connection.PgConn().Exec(t.Context(), script).ReadAll(); err != nil {
		t.Fatal(err)
	}
}

// onRedis returns a client of a store's server, and the store's prefix.
func onRedis(t *testing.T, storeURL string) (client *goredis.Client, prefix string) {
	t.Helper()
	u, err := url.Parse(storeURL)
	if err != nil {
		t.Fatal(err)
	}
	prefix = u.Query().Get("prefix")
	u.RawQuery = ""
	o, err := goredis.ParseURL(u.String())
	if err != nil {
		t.Fatal(err)
	}
	client = goredis.NewClient(o)
	t.Cleanup(func() { _ = client.Close() })
	return client, prefix
}

func dumpRedis(t *testing.T, storeURL string) string {
	client, prefix := onRedis(t, storeURL)
	keys, err := client.Keys(t.Context(), prefix+":*").Result()
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(keys)
	var b strings.Builder
	write := func(words ...string) {
		for i, w := range words {
			words[i] = strconv.Quote(strings.ReplaceAll(w, prefix, "fixture"))
		}
		b.WriteString(strings.Join(words, " ") + "\n")
	}
	for _, key := range keys {
		kind, err := client.Type(t.Context(), key).Result()
		if err != nil {
			t.Fatal(err)
		}
		switch kind {
		case "string":
			write("set", key, client.Get(t.Context(), key).Val())
		case "hash":
			fields := client.HGetAll(t.Context(), key).Val()
			for _, name := range slices.Sorted(maps.Keys(fields)) {
				write("hset", key, name, fields[name])
			}
		case "set":
			members := client.SMembers(t.Context(), key).Val()
			slices.Sort(members)
			for _, m := range members {
				write("sadd", key, m)
			}
		case "zset":
			for _, z := range client.ZRangeWithScores(t.Context(), key, 0, -1).Val() {
				write("zadd", key, strconv.FormatFloat(z.Score, 'f', -1, 64), fmt.Sprint(z.Member))
			}
		default:
			t.Fatalf("key %q has the type %s", key, kind)
		}
		if ttl := client.PTTL(t.Context(), key).Val(); ttl > 0 {
			t.Fatalf("key %q expires, which the text does not have", key)
		}
	}
	return b.String()
}

var quotedWord = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)

func restoreRedis(t *testing.T, storeURL, text string) {
	client, prefix := onRedis(t, storeURL)
	for line := range strings.Lines(text) {
		var words []any
		for _, quoted := range quotedWord.FindAllString(line, -1) {
			word, err := strconv.Unquote(quoted)
			if err != nil {
				t.Fatalf("%s: %v", quoted, err)
			}
			words = append(words, strings.ReplaceAll(word, "fixture", prefix))
		}
		if err := client.Do(t.Context(), words...).Err(); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
	}
}

// onMongoDB returns a store's database.
func onMongoDB(t *testing.T, storeURL string) *mongo.Database {
	t.Helper()
	client, err := mongo.Connect(options.Client().ApplyURI(storeURL))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Disconnect(t.Context()) })
	u, err := url.Parse(storeURL)
	if err != nil {
		t.Fatal(err)
	}
	return client.Database(strings.Trim(u.Path, "/"))
}

// each calls f for each document of a cursor.
func each(t *testing.T, cursor *mongo.Cursor, err error, f func(document bson.Raw)) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	defer cursor.Close(t.Context())
	for cursor.Next(t.Context()) {
		f(slices.Clone(cursor.Current))
	}
	if err := cursor.Err(); err != nil {
		t.Fatal(err)
	}
}

func dumpMongoDB(t *testing.T, storeURL string) string {
	db := onMongoDB(t, storeURL)
	names, err := db.ListCollectionNames(t.Context(), bson.M{})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(names)
	var b strings.Builder
	write := func(what, collection string, v any) {
		text, err := bson.MarshalExtJSON(v, true, false)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "%s %s %s\n", what, collection, text)
	}
	for _, name := range names {
		cursor, err := db.Collection(name).Indexes().List(t.Context())
		each(t, cursor, err, func(index bson.Raw) {
			var d bson.D
			if err := bson.Unmarshal(index, &d); err != nil {
				t.Fatal(err)
			}
			d = slices.DeleteFunc(d, func(e bson.E) bool { return e.Key == "v" || e.Key == "ns" })
			if index.Lookup("name").StringValue() != "_id_" {
				write("index", name, d)
			}
		})
		cursor, err = db.Collection(name).Find(t.Context(), bson.M{}, options.Find().SetSort(bson.M{"_id": 1}))
		each(t, cursor, err, func(document bson.Raw) { write("document", name, document) })
	}
	return b.String()
}

func restoreMongoDB(t *testing.T, storeURL, text string) {
	db := onMongoDB(t, storeURL)
	for line := range strings.Lines(text) {
		words := strings.SplitN(line, " ", 3)
		var d bson.D
		if err := bson.UnmarshalExtJSON(bytes.TrimSpace([]byte(words[2])), true, &d); err != nil {
			t.Fatal(err)
		}
		var err error
		if words[0] == "index" {
			err = db.RunCommand(t.Context(), bson.D{{Key: "createIndexes", Value: words[1]}, {Key: "indexes", Value: bson.A{d}}}).Err()
		} else {
			_, err = db.Collection(words[1]).InsertOne(t.Context(), d)
		}
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
	}
}
