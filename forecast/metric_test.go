package forecast_test

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/carillon-scheduler/carillon/forecast"
	"github.com/carillon-scheduler/carillon/store/memory"
)

// The metric counts the next hour by the last plan, which forecasts read, or scrapes if they are to.
func TestNextHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New()
		at(t, s, "acme", "a", monday, 5, nil)
		now := monday.Add(-30 * time.Minute)
		value := func(c prometheus.Collector) float64 {
			n := testutil.ToFloat64(c)
			synctest.Wait()
			return n
		}
		reader := forecast.NewReader(s, destination, forecast.DefaultBounds)
		asked := reader.Collector(func() time.Time { return now }, 0)
		if got := value(asked); !math.IsNaN(got) {
			t.Errorf("before any forecast it is %v", got)
		}
		if _, err := reader.Plan(t.Context(), now); err != nil {
			t.Fatal(err)
		}
		if got := value(asked); got != 5 {
			t.Errorf("after a forecast it is %v", got)
		}
		now = now.Add(31 * time.Minute)
		if got := value(asked); got != 0 {
			t.Errorf("when they were due it is %v", got)
		}
		now = now.Add(time.Hour)
		if got := value(asked); !math.IsNaN(got) {
			t.Errorf("by an old plan it is %v", got)
		}

		now = monday.Add(-time.Minute)
		by := forecast.NewReader(s, destination, forecast.DefaultBounds).Collector(func() time.Time { return now }, 5*time.Minute)
		if first, second := value(by), value(by); !math.IsNaN(first) || second != 5 {
			t.Errorf("at scrapes it is %v and %v", first, second)
		}
		at(t, s, "acme", "b", monday.Add(20*time.Minute), 2, nil)
		now = now.Add(6 * time.Minute)
		if before, after := value(by), value(by); before != 0 || after != 2 {
			t.Errorf("six minutes later it is %v and %v", before, after)
		}
	})
}
