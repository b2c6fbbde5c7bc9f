package handlers_test

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// A new spread moves pending occurrences. Instants and delivery ids stay.
func TestSpreadChanges(t *testing.T) {
	t.Parallel()
	for name, sent := range map[string]string{
		"instants": body("a", time.Hour, 2*time.Hour),
		"crontab":  recurring("a", "H * * * *"),
		"sequence": sequence("a", []any{wait(1, "hour"), fire(), wait(1, "hour"), fire()}, "subscribers", 2),
	} {
		t.Run(name, func(t *testing.T) {
			a := newAPI(t)
			a.call("PUT", "/v1/jobs/a", sent).want(201)
			plain := a.definition("a")
			a.call("PUT", "/v1/jobs/a", with(sent, "spread", "15m")).want(200)
			put := a.definition("a")
			a.patch("a", `{"spread":"30m"}`).want(200)
			patched := a.definition("a")
			a.patch("a", `{"spread":null}`).want(200)
			back := a.definition("a")
			for _, d := range []definition{plain, put, patched, back} { // ids of one instant have no order
				slices.SortFunc(d.Occurrences, func(a, b occurrence) int {
					return strings.Compare(a.Timestamp+a.Subscriber, b.Timestamp+b.Subscriber)
				})
			}
			for i, o := range plain.Occurrences {
				if o.DueAt != o.Timestamp || back.Occurrences[i].DueAt != o.DueAt {
					t.Errorf("without spread: %+v, then %+v", o, back.Occurrences[i])
				}
				for _, d := range []definition{put, patched, back} {
					if got := d.Occurrences[i]; got.Timestamp != o.Timestamp || got.DeliveryID != o.DeliveryID || got.State != "scheduled" || got.Attempt != 0 {
						t.Errorf("%+v, then %+v", o, got)
					}
				}
				first, second := moved(t, put.Occurrences[i]), moved(t, patched.Occurrences[i])
				if first <= 0 || first >= 15*time.Minute || second < 2*first || second > 2*first+time.Millisecond {
					t.Errorf("%s is moved by %s, then by %s", o.Timestamp, first, second)
				}
			}
			if put.NextInstant != plain.NextInstant || plain.NextInstant == "" {
				t.Errorf("the next instant is %s, then %s", plain.NextInstant, put.NextInstant)
			}
		})
	}
}

// moved returns the time by which an occurrence is due after its instant.
func moved(t *testing.T, o occurrence) time.Duration {
	t.Helper()
	at, err := time.Parse(time.RFC3339, o.Timestamp)
	if err != nil {
		t.Fatal(err)
	}
	due, err := time.Parse(time.RFC3339, o.DueAt)
	if err != nil {
		t.Fatal(err)
	}
	return due.Sub(at)
}

// An occurrence that waits in its window, after its instant, stays in each replacement that has its instant, and fires
// once. A repeated submission changes nothing.
func TestSpreadIsReplacedInItsWindow(t *testing.T) {
	t.Parallel()
	for name, sent := range map[string]string{
		"instants": with(body("a", time.Minute, 48*time.Hour), "spread", "24h"),
		"crontab":  recurring("a", "0 H * * *", "startAt", at(0), "spread", "24h"),
	} {
		t.Run(name, func(t *testing.T) {
			a := newAPI(t)
			a.call("PUT", "/v1/jobs/a", sent).want(201)
			first := a.definition("a").Occurrences[0]
			instant, err := time.Parse(time.RFC3339, first.Timestamp)
			if err != nil {
				t.Fatal(err)
			}
			a.advance(instant.Sub(start) + time.Second) // the instant has passed, its time has not come
			if claimed := a.claim(); len(claimed) != 0 {
				t.Fatalf("claimed %+v", claimed)
			}
			for _, again := range []string{sent, with(sent, "spread", "23h"), with(sent, "priority", "high")} {
				a.call("PUT", "/v1/jobs/a", again).want(200)
				if got := a.definition("a").Occurrences[0]; got.ID != first.ID || got.DueAt != first.DueAt {
					t.Errorf("%s: %+v, at first %+v", again, got, first)
				}
			}
			a.advance(moved(t, first))
			if claimed := a.claim(); len(claimed) != 1 || claimed[0].ID.String() != first.ID {
				t.Errorf("claimed %+v", claimed)
			}
		})
	}
}
