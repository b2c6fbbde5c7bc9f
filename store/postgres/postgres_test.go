//go:build services

package postgres_test

import (
	"context"
	"crypto/rand"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/carillon-scheduler/carillon/history/historytest"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/memory"
	"github.com/carillon-scheduler/carillon/store/postgres"
	"github.com/carillon-scheduler/carillon/store/storetest"
)

func TestStore(t *testing.T) {
	t.Parallel()
	storetest.Run(t, emptied(t, serverURL))
}

// TestFirstStart: replicas that start side by side in a new schema make its tables.
func TestFirstStart(t *testing.T) {
	t.Parallel()
	storetest.FirstStart(t, func(t *testing.T) storetest.Opener { return newSchema(t, serverURL).opener() })
}

// TestStoreThroughPgBouncer runs in a long test only. Otherwise TestDifferential covers PgBouncer.
func TestStoreThroughPgBouncer(t *testing.T) {
	t.Parallel()
	if storetest.Long() {
		storetest.Run(t, emptied(t, pgbouncerURL))
	}
}

// TestScram: the store logs in by the server's default method, SCRAM-SHA-256. The server of the tests asks for MD5,
// which costs less, unless a role's password is kept for SCRAM.
func TestScram(t *testing.T) {
	t.Parallel()
	const role = "carillon_scram"
	run(t, admin(t), "BEGIN; SET LOCAL password_encryption = 'scram-sha-256'; "+
		"CREATE ROLE "+role+" LOGIN SUPERUSER PASSWORD 'secret'; COMMIT")
	t.Cleanup(func() { run(t, admin(t), "DROP ROLE "+role) })
	s := newSchema(t, serverURL)
	u, err := url.Parse(s.url)
	if err != nil {
		t.Fatal(err)
	}
	for password, want := range map[string]bool{"secret": true, "another": false} {
		u.User = url.UserPassword(role, password)
		opened, err := postgres.Open(t.Context(), u.String())
		if (err == nil) != want {
			t.Errorf("with the password %s: %v", password, err)
		}
		if err == nil {
			err = opened.Close()
		}
		if want && err != nil {
			t.Error(err)
		}
	}
}

// TestHistory: the store keeps history.
func TestHistory(t *testing.T) {
	t.Parallel()
	historytest.Run(t, emptied(t, serverURL))
}

// TestDifferential: the store behaves like the reference store, through PgBouncer.
func TestDifferential(t *testing.T) {
	t.Parallel()
	storetest.Differential(t, 30, func() store.Store { return memory.New() }, emptied(t, pgbouncerURL))
}

// The environment variables with the addresses of the servers.
const (
	serverURL    = "CARILLON_TEST_POSTGRES_URL"
	pgbouncerURL = "CARILLON_TEST_PGBOUNCER_URL"
)

func environment(t testing.TB, name string) string {
	t.Helper()
	value := os.Getenv(name)
	if value == "" {
		t.Fatalf("%s must be set, as .ci/with-services does", name)
	}
	return value
}

// pause is the time between two looks at the server, which leaves the processor to what is awaited.
const pause = 5 * time.Millisecond

// superuser makes the pool that all tests share. A pool of each test's own would cost a login or two in each.
var superuser = sync.OnceValues(func() (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(os.Getenv(serverURL))
	if err != nil {
		return nil, err
	}
	config.MaxConns = 40 // tests that run in parallel hold transactions open
	// Tests end connections.
	config.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return true }
	return pgxpool.NewWithConfig(context.Background(), config)
})

// admin returns a pool of a superuser's connections to the server.
func admin(t testing.TB) *pgxpool.Pool {
	t.Helper()
	environment(t, serverURL)
	pool, err := superuser()
	if err != nil {
		t.Fatal(err)
	}
	return pool
}

func run(t testing.TB, pool *pgxpool.Pool, sql string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	if _, err := pool.Exec(ctx, sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// schema is a schema that does not exist yet. It is removed when the test ends.
type schema struct {
	testing.TB
	name  string
	url   string // of a store in it
	admin *pgxpool.Pool
}

func newSchema(t testing.TB, server string) schema {
	t.Helper()
	s := schema{TB: t, name: "test_" + strings.ToLower(rand.Text()), admin: admin(t)}
	s.url = with(t, environment(t, server), "schema", s.name)
	t.Cleanup(func() { run(t, s.admin, "DROP SCHEMA IF EXISTS "+s.name+" CASCADE") })
	return s
}

// with returns a store URL with one more option.
func with(t testing.TB, rawURL, option, value string) string {
	t.Helper()
	u, err := url.Parse(rawURL)
	if err != nil {
		t.Fatal(err)
	}
	query := u.Query()
	query.Set(option, value)
	u.RawQuery = query.Encode()
	return u.String()
}

// emptied returns a function that makes empty stores, for tests one after another or in parallel. It empties a schema
// of an earlier test if there is one, which costs less than to make and drop its tables. The schemas are removed when t
// ends.
func emptied(t *testing.T, server string) func(t *testing.T) storetest.Opener {
	var mu sync.Mutex
	var free []schema
	return func(test *testing.T) storetest.Opener {
		test.Helper()
		var s schema
		mu.Lock()
		if len(free) > 0 {
			s, free = free[0], free[1:]
		}
		mu.Unlock()
		if s.TB != nil {
			s.TB = test
			if server == serverURL { // a call that was given up may have been under way
				s.awaitGone("application_name", s.name)
			}
			s.empty()
		} else {
			s = newSchema(t, server)
			s.url = with(test, s.url, "application_name", s.name)
		}
		test.Cleanup(func() { // after the stores have been closed
			mu.Lock()
			defer mu.Unlock()
			free = append(free, s)
		})
		return s.opener()
	}
}

// TestEmptied: a schema in which no store was opened is as new.
func TestEmptied(t *testing.T) {
	t.Parallel()
	newStore := emptied(t, serverURL)
	t.Run("not opened", func(t *testing.T) { newStore(t) })
	t.Run("opened", func(t *testing.T) {
		opened, err := newStore(t)()
		if err != nil {
			t.Fatal(err)
		}
		if err := opened.Close(); err != nil {
			t.Error(err)
		}
	})
}

// empty removes what stores have put. They keep nothing of that in memory, so they are as new. A store makes the tables
// when it is opened, and a test may end without that.
func (s schema) empty() {
	s.Helper()
	if !query[bool](s, "SELECT to_regnamespace($1) IS NOT NULL", s.name) {
		return
	}
	for _, table := range []string{"jobs", "occurrences", "records"} {
		run(s, s.admin, "DELETE FROM "+s.table(table))
	}
}

func (s schema) opener() storetest.Opener {
	return func() (store.Store, error) { return postgres.Open(context.Background(), s.url) }
}

// open opens a store, which is closed when the test ends.
func (s schema) open() *postgres.Store {
	s.Helper()
	opened, err := postgres.Open(s.Context(), s.url)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		if err := opened.Close(); err != nil {
			s.Error(err)
		}
	})
	return opened
}

// table returns the name of a table of the store, for SQL.
func (s schema) table(name string) string { return pgx.Identifier{s.name, name}.Sanitize() }

// query reads one value.
func query[V any](s schema, sql string, args ...any) (value V) {
	s.Helper()
	if err := s.admin.QueryRow(context.Background(), sql, args...).Scan(&value); err != nil {
		s.Fatalf("%s: %v", sql, err)
	}
	return value
}

// epoch is the time at which the tests take place.
var epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

const lease = time.Minute

func name(key string) job.Name { return job.Name{Tenant: job.DefaultTenant, Key: key} }

// newPut returns a submission at the epoch with instants at these offsets from it.
func newPut(key string, after ...time.Duration) store.Put {
	j := job.Job{
		Name: name(key), Revision: job.NewRevision(epoch),
		Callback:  job.Callback{Type: "http", Data: []byte(`{"url":"http://127.0.0.1/","payload":1}`)},
		CreatedAt: epoch, UpdatedAt: epoch, ExpiresAt: epoch.Add(24 * time.Hour),
	}
	j.Version = j.Revision
	for _, d := range after {
		j.Schedule.Instants = append(j.Schedule.Instants, epoch.Add(d))
	}
	begun, err := j.Begin(epoch, job.PastFire, job.Expansion{})
	if err != nil {
		panic(err)
	}
	return store.Put{Job: j, Occurrences: begun.Occurrences, Now: epoch}
}

func mustPut(t testing.TB, s store.Store, puts ...store.Put) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), store.Within)
	defer cancel()
	for _, result := range s.Put(ctx, puts) {
		if result.Err != nil {
			t.Fatal(result.Err)
		}
	}
}

func mustClaim(t testing.TB, s store.Store, now time.Time, limit int) store.Claim {
	t.Helper()
	claim, err := s.Claim(t.Context(), store.ClaimParams{Now: now, Lease: lease, Quotas: []store.Quota{{Lane: job.DefaultLane, Limit: limit}}})
	if err != nil {
		t.Fatal(err)
	}
	return claim
}

// acks returns settlements that acknowledge claims.
func acks(claimed []store.Claimed) []store.Settlement {
	settlements := make([]store.Settlement, len(claimed))
	for i, c := range claimed {
		settlements[i] = store.Settlement{ID: c.ID, Token: c.Token, Hint: c.Hint, Outcome: store.Ack, Name: c.Name, Revision: c.Revision}
	}
	return settlements
}
