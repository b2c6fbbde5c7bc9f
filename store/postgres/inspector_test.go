//go:build services

package postgres_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/postgres"
)

// TestBacklogOfMany: in a large table, the number of pending occurrences is estimated and the number of due ones is
// exact. All of it is read from indexes alone, and no more entries than are counted.
func TestBacklogOfMany(t *testing.T) {
	const many, due, dead, counted = 250_000, 1000, 500, 100_001
	s := newSchema(t, serverURL)
	s.url = with(t, with(t, s.url, "application_name", s.name), "pool_max_conns", "1")
	o, err := postgres.Open(context.Background(), s.url)
	if err != nil {
		t.Fatal(err)
	}
	insert := func(dueAt string, from, to int) string {
		return fmt.Sprintf(`INSERT INTO %s (lane, revision, id, tenant, key, position, attempt, timestamp, due_at)
			SELECT 'default', lpad(to_hex(n), 32, '0')::uuid, gen_random_uuid(), 'default', 'k' || n, 0, 0, n, %s FROM generate_series(%d, %d) n`,
			s.table("occurrences"), dueAt, from, to)
	}
	// On one connection, so that the server's statistics include its inserts before they are read.
	conn, err := s.admin.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{
		insert("n", 1, many), insert("NULL", many+1, many+dead),
		"SELECT pg_stat_force_next_flush()", "VACUUM ANALYZE " + s.table("occurrences"),
	} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	conn.Release()
	const asked = 3
	for range asked {
		b, err := store.CountAll(t.Context(), o, time.UnixMilli(due))
		if err != nil {
			t.Fatal(err)
		}
		if b.Due != due || b.DeadLetters != dead {
			t.Errorf("the backlog is %+v, want %d due and %d dead letters", b, due, dead)
		}
		if b.Pending < many*97/100 || b.Pending > many*103/100 {
			t.Errorf("%d are estimated to be pending, want about %d", b.Pending, many)
		}
	}
	// However wrong the estimate is, the pending number is at least the due number, and at least the counted one.
	run(t, s.admin, "SELECT pg_stat_reset_single_table_counters('"+s.table("occurrences")+"'::regclass)")
	if b, err := store.CountAll(t.Context(), o, time.UnixMilli(many-1)); err != nil || b.Pending < many-1 || b.Due != many-1 {
		t.Errorf("without statistics the backlog is %+v, %v", b, err)
	}
	if err := o.Close(); err != nil {
		t.Fatal(err)
	}
	s.awaitGone("application_name", s.name)
	read := func(column string) int {
		return query[int](s, "SELECT "+column+" FROM pg_stat_user_tables WHERE schemaname = $1 AND relname = 'occurrences'", s.name)
	}
	if n := read("seq_tup_read"); n > many/100 {
		t.Errorf("%d rows were read from end to end", n)
	}
	if n := read("idx_tup_fetch"); n > many/100 {
		t.Errorf("%d rows were read beside their entries in an index", n)
	}
	entries := query[int](s, "SELECT idx_tup_read FROM pg_stat_user_indexes WHERE schemaname = $1 AND indexrelname = 'occurrences_claim'", s.name)
	// Each call reads the lane's first entry, which shows that the lane exists, the oldest due one, all due ones, and
	// the counted entries.
	if most := (asked+1)*(1+counted) + asked*(1+due) + 1 + many - 1; entries < many || entries > most {
		t.Errorf("%d entries of the claim index were read, want at most %d", entries, most)
	}
}
