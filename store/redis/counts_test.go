//go:build services

package redis_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// TestStateWithoutCounts: a job of a version that counted only missed instants is read and rewritten. Its planned
// number is unknown.
func TestStateWithoutCounts(t *testing.T) {
	server := newServer(t)
	s := open(t, server.url)
	p := put("k", 2)
	p.Job.Missed = 3
	mustPut(t, s, p)
	const jobs, field = "carillon:{0}:jobs", job.DefaultTenant + "\x00k"
	state := fmt.Sprint(server.must("hget", jobs, field))
	counts := fmt.Sprintf(" 3:%d:0: ", p.Job.Planned)
	if !strings.Contains(state, counts) {
		t.Fatalf("the state is %q", state)
	}
	server.must("hset", jobs, field, strings.Replace(state, counts, " 3 ", 1))
	j, err := store.ReadJob(t.Context(), s, p.Job.Name)
	if err != nil || j.Missed != 3 || j.Planned != 0 || j.Failed != 0 || !j.Trouble.IsZero() {
		t.Errorf("%+v, %v", j, err)
	}
	now := epoch.Add(time.Hour)
	for i, c := range claim(t, s, now, 10).Occurrences {
		err := s.Settle(t.Context(), []store.Settlement{{
			ID: c.ID, Token: c.Token, Outcome: []store.Outcome{store.Bury, store.Miss}[i], At: now, Error: "no", Target: c.Target,
			Name: c.Name, Revision: c.Revision,
		}})
		if err != nil {
			t.Error(err)
		}
	}
	j, err = store.ReadJob(t.Context(), s, p.Job.Name)
	if err != nil || j.Missed != 4 || j.Planned != 0 || j.Failed != 1 || j.Trouble.IsZero() {
		t.Errorf("%+v, %v", j, err)
	}
}
