package job_test

import (
	"slices"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/job"
)

func TestIDsSortByInstant(t *testing.T) {
	instants := []time.Time{
		time.UnixMilli(0), time.UnixMilli(1), start.Add(-time.Millisecond), start, start.Add(time.Millisecond), start.AddDate(100, 0, 0),
		time.Date(9999, 12, 31, 23, 59, 59, 999_000_000, time.UTC),
	}
	var ids, texts []string
	for _, at := range instants {
		id := job.OccurrenceID(job.Name{Tenant: "t", Key: "k"}, "r", at, 0, "")
		ids, texts = append(ids, string(id[:])), append(texts, id.String())
	}
	if !slices.IsSorted(ids) || !slices.IsSorted(texts) {
		t.Errorf("not ascending: %q", texts)
	}
}

// TestIDsDiffer uses fields whose plain concatenations are equal.
func TestIDsDiffer(t *testing.T) {
	type of struct {
		tenant, key string
		revision    job.Revision
		at          time.Time
		position    int
	}
	all := []of{
		{"a", "bc", "", start, 0}, {"ab", "c", "", start, 0}, {"abc", "", "", start, 0}, {"", "abc", "", start, 0}, {"a", "b", "c", start, 0},
		{"ab", "", "c", start, 0}, {"a", "b", "d", start, 0}, {"a", "b", "c", start, 1}, {"a", "b", "c", start.Add(time.Millisecond), 0},
		{"a\x01b", "", "", start, 0}, {"a", "\x01b", "", start, 0},
	}
	seen := map[job.ID]of{}
	for _, o := range all {
		id := job.OccurrenceID(job.Name{Tenant: o.tenant, Key: o.key}, o.revision, o.at, o.position, "")
		if other, taken := seen[id]; taken {
			t.Errorf("%+v and %+v have the id %s", o, other, id)
		}
		seen[id] = o
		if again := job.OccurrenceID(job.Name{Tenant: o.tenant, Key: o.key}, o.revision, o.at, o.position, ""); again != id {
			t.Errorf("%+v has the ids %s and %s", o, id, again)
		}
	}
}

func TestDeliveryIDDoesNotDependOnTheRevision(t *testing.T) {
	n := job.Name{Tenant: "t", Key: "k"}
	one := job.Occurrence{Name: n, Revision: job.NewRevision(start), Timestamp: start, DueAt: start, Attempt: 1}
	two := job.Occurrence{Name: n, Revision: job.NewRevision(start), Timestamp: start, DueAt: start.Add(time.Hour), Attempt: 2}
	if one.DeliveryID() != two.DeliveryID() {
		t.Errorf("%s and %s", one.DeliveryID(), two.DeliveryID())
	}
	two.Position = 1
	if one.DeliveryID() == two.DeliveryID() {
		t.Error("two positions share a delivery id")
	}
}

func TestParseID(t *testing.T) {
	id := job.DeliveryID(job.Name{Tenant: "t", Key: "k"}, start, 0, "")
	if got, err := job.ParseID(id.String()); err != nil || got != id {
		t.Errorf("%s is read back as %s, %v", id, got, err)
	}
	for _, bad := range []string{"", "01JF", id.String() + "0", "8" + id.String()[1:], id.String()[:25] + "U", id.String()[:25] + "\xff"} {
		if got, err := job.ParseID(bad); err == nil {
			t.Errorf("%q is read as %s", bad, got)
		}
	}
}

func TestRevisions(t *testing.T) {
	seen := map[job.Revision]bool{}
	for range 1000 {
		r := job.NewRevision(start)
		if seen[r] {
			t.Fatalf("%s was taken twice", r)
		}
		seen[r] = true
		if got := r.Age(start.Add(time.Minute)); got != time.Minute {
			t.Fatalf("age %v", got)
		}
	}
	if got := job.NewRevision(start).Age(start.Add(-time.Minute)); got != -time.Minute {
		t.Errorf("age by a clock behind: %v", got)
	}
	if got := job.Revision("custom").Age(start); got != 0 {
		t.Errorf("age of none of ours: %v", got)
	}
}

func TestTokensDiffer(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		token := job.NewToken()
		if seen[token] || token == "" {
			t.Fatalf("token %q", token)
		}
		seen[token] = true
	}
}
