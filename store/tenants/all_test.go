package tenants_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store/memory"
	"github.com/carillon-scheduler/carillon/store/tenants"
)

// TestAll: a listing has the settings of all tenants that have any, and is made again when it is as old as the caller
// allows.
func TestAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New()
		here, elsewhere := tenants.New(s), tenants.New(s)
		weight := 0.0
		change := func() {
			weight++
			for _, name := range []string{"acme", "other"} {
				if err := elsewhere.Set(t.Context(), name, job.TenantSettings{Weight: weight}, time.Now()); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := elsewhere.Set(t.Context(), "without", job.TenantSettings{}, time.Now()); err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			after, age time.Duration
			fresh      bool
		}{
			{0, time.Hour, true}, // nothing is known yet
			{time.Second, 2 * time.Second, false},
			{time.Second, 2 * time.Second, true},
			{time.Second, 2 * time.Second, false},
			{0, 0, true},
		} {
			time.Sleep(c.after)
			before := weight
			change()
			all, err := here.All(t.Context(), c.age)
			if err != nil || len(all.Settings) > 2 {
				t.Fatal(all, err)
			}
			if got := all.Settings["other"].Weight; (got == weight) != c.fresh {
				t.Errorf("%s later, a listing of the last %s has the weight %v; it was %v before, and is %v", c.after, c.age, got, before, weight)
			}
		}
	})
}
