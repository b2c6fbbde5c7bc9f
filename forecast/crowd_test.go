package forecast_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillon-scheduler/carillon/forecast"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store/memory"
)

// TestCrowd: planned occurrences, also those of crontabs, and later submissions crowd a second.
func TestCrowd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New()
		at(t, s, "acme", "a", monday, 5, nil)
		at(t, s, "acme", "b", monday, 3, nil)
		if err := s.Pause(t.Context(), job.Name{Tenant: "acme", Key: "b" + monday.String()}, "p", monday.Add(-time.Hour)); err != nil {
			t.Fatal(err)
		}
		submit(t, s, monday.Add(-time.Hour), "bolt", `{"key":"cron","crontab":"0 9 * * *","callback":{"type":"test","data":"c"}}`)
		now := monday.Add(-time.Hour)
		crowd := forecast.NewCrowd(forecast.NewReader(s, destination, forecast.DefaultBounds), 6)
		expect := func(what string, got []forecast.Crowded, want string) {
			t.Helper()
			var text []string
			for _, c := range got {
				text = append(text, fmt.Sprint(c.At.Format(time.TimeOnly), " ", c.Occurrences))
			}
			if fmt.Sprint(text) != want {
				t.Errorf("%s: %v, want %s", what, text, want)
			}
		}
		one := []time.Time{monday.Add(999 * time.Millisecond)}
		expect("before the plan was read", crowd.Look(now, one), "[]")
		synctest.Wait()
		expect("5 and a crontab", crowd.Look(now, one), "[]")
		expect("one more", crowd.Submitted(now, one), "[09:00:00 7]")
		expect("it is there now", crowd.Look(now, one), "[09:00:00 7]")
		expect("the second before", crowd.Look(now, []time.Time{monday.Add(-time.Millisecond)}), "[]")
		many := append(slices.Repeat([]time.Time{monday.Add(time.Hour)}, 7), one...)
		expect("many in one job", crowd.Submitted(now, many), "[09:00:00 8 10:00:00 7]")

		// When the plan is read again, it has the submissions that still exist.
		now = now.Add(2 * time.Minute)
		_ = crowd.Look(now, one)
		synctest.Wait()
		expect("after a minute", crowd.Submitted(now, many), "[09:00:00 7 10:00:00 7]")
		var none *forecast.Crowd
		if forecast.NewCrowd(nil, 0) != none || none.Submitted(now, many) != nil || none.Look(now, many) != nil {
			t.Error("without the option there is a crowd")
		}
	})
}
