//go:build services

package mongodb_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/carillon-scheduler/carillon/docs/protocol/model"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/mongodb"
)

// TestCommandsAreThoseOfTheModel: the commands that each method sends are a path of its call in the model that
// docs/protocol searches, alone and while other clients change the job. Each write has the guards of the model's.
func TestCommandsAreThoseOfTheModel(t *testing.T) {
	own := newRecorded(t)
	now := epoch.Add(time.Minute)
	first := newJob(epoch, 0, time.Hour)
	endsOf := func(limit int, outcome store.Outcome) func(*testing.T, store.Store) {
		return func(t *testing.T, s store.Store) {
			claim, err := s.Claim(t.Context(), claimParams(now, limit))
			if err != nil {
				t.Error(err)
			}
			for _, c := range claim.Occurrences {
				settled := settlement(c, outcome)
				settled.DueAt, settled.KeepUntil = now, now.Add(time.Hour)
				if err := s.Settle(t.Context(), []store.Settlement{settled}); err != nil {
					t.Error(err)
				}
			}
		}
	}
	ends := func(outcome store.Outcome) func(*testing.T, store.Store) { return endsOf(10, outcome) }
	redrive := func(t *testing.T, s store.Store) {
		_, _ = s.SettleDead(t.Context(), store.DeadSettlement{
			Outcome: store.Redrive, Tenant: job.DefaultTenant, IDs: []job.ID{first.Occurrences[0].ID}, Now: now,
		})
	}
	buried := func(t *testing.T, s store.Store) {
		mustPut(t, s, first)
		ends(store.Bury)(t, s)
	}
	others := []struct {
		name string
		do   func(*testing.T, store.Store)
	}{
		{"resumed", func(t *testing.T, s store.Store) { // if there is a job
			_ = s.Pause(t.Context(), name("k"), job.NewRevision(epoch), epoch)
			_ = s.Resume(t.Context(), name("k"), job.NewRevision(now), now)
		}},
		{"replaced", func(t *testing.T, s store.Store) { mustPut(t, s, newJob(now, time.Minute, 3*time.Hour)) }},
		{"cancelled", func(t *testing.T, s store.Store) {
			if _, err := s.Cancel(t.Context(), []job.Name{name("k")}, store.Asked{Now: now}); err != nil {
				t.Error(err)
			}
		}},
	}
	for _, c := range []struct {
		name   string
		kind   model.Kind
		before func(*testing.T, store.Store)
		many   bool     // it expects many due occurrences
		read   []string // the commands of its handler
		do     func(*testing.T, store.Store)
	}{
		{name: "creates", kind: model.Put, do: func(t *testing.T, s store.Store) {
			p := newJob(epoch, 0, time.Hour)
			p.If = store.Condition{Absent: true}
			_ = s.Put(t.Context(), []store.Put{p})
		}},
		{name: "replaces", kind: model.Put, before: func(t *testing.T, s store.Store) { mustPut(t, s, first) },
			read: []string{"jobs.find", "occurrences.find"}, do: func(t *testing.T, s store.Store) {
				_ = s.Put(t.Context(), []store.Put{carrying(first, newJob(now, 0, 2*time.Hour))})
			}},
		{name: "cancels", kind: model.Cancel, before: func(t *testing.T, s store.Store) { mustPut(t, s, first) },
			do: func(t *testing.T, s store.Store) {
				_, _ = s.Cancel(t.Context(), []job.Name{name("k")}, store.Asked{Now: now})
			}},
		{name: "cancels a version", kind: model.CancelIf, before: func(t *testing.T, s store.Store) { mustPut(t, s, first) },
			do: func(t *testing.T, s store.Store) {
				only := store.Condition{Versions: []job.Revision{first.Job.Version}}
				_, _ = s.Cancel(t.Context(), []job.Name{name("k")}, store.Asked{Now: now, If: only})
			}},
		{name: "cancels redriven", kind: model.Cancel, before: func(t *testing.T, s store.Store) {
			buried(t, s)
			redrive(t, s)
		}, do: func(t *testing.T, s store.Store) {
			_, _ = s.Cancel(t.Context(), []job.Name{name("k")}, store.Asked{Now: now})
		}},
		{name: "amends", kind: model.Amend, before: func(t *testing.T, s store.Store) { mustPut(t, s, first) },
			read: []string{"jobs.find"}, do: func(t *testing.T, s store.Store) {
				_ = s.Amend(t.Context(), amendment(first.Job.Version))
			}},
		{name: "pauses", kind: model.Pause, before: func(t *testing.T, s store.Store) { mustPut(t, s, first) },
			do: func(t *testing.T, s store.Store) { _ = s.Pause(t.Context(), name("k"), job.NewRevision(now), now) }},
		{name: "resumes", kind: model.Resume, before: func(t *testing.T, s store.Store) {
			mustPut(t, s, first)
			pause(t, s, epoch)
			mustClaim(t, s, now, 10)
		}, do: func(t *testing.T, s store.Store) { _ = s.Resume(t.Context(), name("k"), job.NewRevision(now), now) }},
		{name: "triggers", kind: model.Trigger, before: func(t *testing.T, s store.Store) { mustPut(t, s, first) },
			do: func(t *testing.T, s store.Store) { _ = trigger(t, s) }},
		{name: "redrives", kind: model.Redrive, before: buried, do: redrive},
		{name: "delivers one", kind: model.ClaimOne, before: func(t *testing.T, s store.Store) { mustPut(t, s, first) },
			do: endsOf(1, store.Ack)},
		{name: "delivers", kind: model.ClaimAck, before: func(t *testing.T, s store.Store) { mustPut(t, s, first) },
			many: true, do: ends(store.Ack)},
		{name: "retries", kind: model.ClaimRetry, before: func(t *testing.T, s store.Store) { mustPut(t, s, first) },
			many: true, do: ends(store.Retry)},
		{name: "buries", kind: model.ClaimBury, before: func(t *testing.T, s store.Store) { mustPut(t, s, first) },
			many: true, do: ends(store.Bury)},
		{name: "misses", kind: model.ClaimMiss, before: func(t *testing.T, s store.Store) { mustPut(t, s, first) },
			many: true, do: ends(store.Miss)},
		{name: "puts back", kind: model.ClaimAck, before: func(t *testing.T, s store.Store) { // more than one claim's
			mustPut(t, s, newJob(epoch, 0, 1, 2, 3, 4, 5))
			pause(t, s, epoch)
		}, many: true, do: endsOf(5, store.Ack)},
		{name: "expands", kind: model.Expand, before: func(t *testing.T, s store.Store) { oldCrontab(t, s) },
			do: func(t *testing.T, s store.Store) {
				claimed, err := s.ClaimJobs(t.Context(), store.ClaimJobsParams{Now: now, Lease: lease, Limit: 10})
				if err != nil {
					t.Error(err)
				}
				for _, j := range claimed.Jobs {
					x, err := j.Expand(now.Add(time.Hour), expansion)
					if err != nil {
						t.Error(err)
					}
					_ = s.Advance(t.Context(), []store.Advance{{
						Name: j.Name, Revision: j.Revision, From: j.Cursor, Token: claimed.Token,
						Occurrences: x.Occurrences, Cursor: x.Cursor, ExpandAt: x.ExpandAt, Missed: x.Missed,
					}})
				}
			}},
		{name: "sweeps", kind: model.Sweep, before: func(t *testing.T, s store.Store) {
			mustPut(t, s, newJob(epoch, 0))
			ends(store.Ack)(t, s)
		}, do: func(t *testing.T, s store.Store) {
			_, _ = s.Sweep(t.Context(), store.SweepParams{Now: now.AddDate(1, 0, 0), Again: time.Minute, Limit: 10})
		}},
	} {
		// run does it while another client acts at the n-th command, and returns the number of commands.
		run := func(title string, n int, other func(*testing.T, store.Store)) (sent int) {
			attempt := func(t *testing.T, w recorded) error {
				sent = 0
				w.db.empty(t, w.store)
				if c.before != nil {
					c.before(t, w.store)
				}
				mongodb.Expect(w.behind, job.DefaultLane, map[bool]int{false: 1, true: 10}[c.many])
				var commands []model.Command
				for _, name := range c.read {
					commands = append(commands, model.Command{Name: name})
				}
				w.relay.set(func(seen command) verdict {
					switch name := nameOf(seen); {
					case name == "", name == "occurrences.look" && c.kind == model.ClaimOne: // it looks for more meanwhile
					default:
						commands = append(commands, model.Command{Name: name, Guards: guardsOf(seen, now)})
					}
					if sent++; sent == n {
						other(t, w.store)
					}
					return pass
				})
				c.do(t, w.behind)
				w.relay.set(nil)
				return c.kind.Accepts(inOrder(commands))
			}
			t.Run(title, func(t *testing.T) {
				err := attempt(t, own)
				for range 2 { // on a busy machine, a call may give up waiting and clean up by other commands
					if err != nil {
						t.Log(err)
						err = attempt(t, newRecorded(t)) // none of those commands reaches it
					}
				}
				if err != nil {
					t.Error(err)
				}
			})
			return sent
		}
		most := run(c.name, 0, nil)
		for n := 1; n <= most; n++ {
			for _, other := range others {
				title := fmt.Sprintf("%s, %s at command %d", c.name, other.name, n)
				most = max(most, run(title, n, other.do))
			}
		}
	}
}

// recorded is a database with a store, and another store behind a relay that records its commands.
type recorded struct {
	db            database
	store, behind *mongodb.Store
	relay         *relay
}

func newRecorded(t *testing.T) recorded {
	t.Helper()
	db := newDatabase(t)
	behind, r := db.relayed(t)
	return recorded{db, db.open(t), behind, r}
}

// nameOf returns the model's name of a command; none for one that the model leaves out, since it decides nothing.
func nameOf(c command) string {
	if c.collection != "jobs" && c.collection != "occurrences" {
		return ""
	}
	switch c.name {
	case "find":
		sorted := c.body.Lookup("sort").Type != 0
		if limit, ok := c.body.Lookup("limit").AsInt64OK(); c.collection == "occurrences" && sorted && ok && limit == 1 {
			return "" // when the next occurrence becomes due
		}
		if c.collection == "occurrences" && sorted {
			return "occurrences.look"
		}
	case "insert", "update", "delete", "aggregate", "findAndModify":
	default:
		return ""
	}
	return c.collection + "." + c.name
}

// guardsOf returns the guards that all statements of a write have. A call that knows the time now has no guard by a
// later time.
func guardsOf(c command, now time.Time) model.Guard {
	var filters []bson.RawValue
	switch c.name {
	case "update", "delete":
		for _, statement := range c.list {
			filters = append(filters, statement.Lookup("q"))
		}
	case "findAndModify":
		filters = append(filters, c.body.Lookup("query"))
	}
	return inAll(filters, now)
}

// inAll returns the guards that each of some filters has.
func inAll(filters []bson.RawValue, now time.Time) (guards model.Guard) {
	for i, filter := range filters {
		if one := guardsIn(filter.Document(), now); i == 0 {
			guards = one
		} else {
			guards &= one
		}
	}
	return guards
}

// guardsIn returns the guards that a filter has.
func guardsIn(filter bson.Raw, now time.Time) (guards model.Guard) {
	conditions, _ := filter.Elements()
	for _, condition := range conditions {
		value := condition.Value()
		switch field, _, _ := strings.Cut(condition.Key(), "."); field {
		case "$or":
			alternatives, _ := value.Array().Values()
			guards |= inAll(alternatives, now)
		case "$nor":
			guards |= model.Free
		case "$expr":
			bound, ok := value.Document().Lookup("$lte", "1").TimeOK()
			if ok && bound.Before(time.Now().Add(store.Within)) { // of a request that begins now
				guards |= model.InTime
			}
		default:
			for _, how := range comparisons(value, now) {
				guards |= guardBy[field+" "+how]
			}
		}
	}
	return guards
}

// guardBy has the model's guard for a field, without the revision in its name, and a comparison.
var guardBy = map[string]model.Guard{
	"version =":       model.Version,
	"version $gt":     model.Exists,
	"revision =":      model.Revision,
	"carriedFrom =":   model.Revision, // it has been the job's
	"cursor =":        model.Cursor,
	"cursor absent":   model.Cursor,
	"token =":         model.Token,
	"token absent":    model.Token,
	"expandToken =":   model.Token,
	"redrives =":      model.Redrives,
	"inherits =":      model.Inherits,
	"heirs present":   model.Heir,
	"pausedAt absent": model.Unpaused,
	"lane $gt":        model.Pending,
	"dueAt absent":    model.Dead,
	"dueAt =":         model.Due,
	"dueAt $lte":      model.Due,
	"expandAt $lte":   model.Due,
}

// comparisons returns how a filter compares a field.
func comparisons(value bson.RawValue, now time.Time) (all []string) {
	operators, ok := value.DocumentOK()
	if !ok {
		return []string{"="}
	}
	each, _ := operators.Elements()
	for _, e := range each {
		switch of := e.Value(); e.Key() {
		case "$in":
			all = append(all, "=")
		case "$exists":
			if of.Boolean() {
				all = append(all, "present")
			} else {
				all = append(all, "absent")
			}
		case "$lte":
			if !of.Time().After(now) {
				all = append(all, "$lte")
			}
		default:
			all = append(all, e.Key())
		}
	}
	return all
}

// inOrder puts insertions that a put sends at the same time into the order that the model has. They don't depend on
// each other.
func inOrder(commands []model.Command) []model.Command {
	for i := 1; i < len(commands); i++ {
		if commands[i-1].Name == "jobs.insert" && commands[i].Name == "occurrences.insert" {
			commands[i-1], commands[i] = commands[i], commands[i-1]
		}
	}
	return commands
}
