package model_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/carillon-scheduler/carillon/docs/protocol/model"
)

// TestNoPromiseIsBroken: no interleaving of two calls breaks a promise, nor of three in a long run.
func TestNoPromiseIsBroken(t *testing.T) {
	most := 2
	if os.Getenv("CARILLON_TEST_LONG") != "" {
		most = 3
	}
	states := 0
	for calls := 1; calls <= most; calls++ {
		for _, s := range model.Scenarios(calls) {
			r, err := model.Search(s, 0, 5_000_000)
			if err != nil {
				t.Error(err)
			}
			if states += r.States; r.Problem == model.None {
				continue
			}
			t.Errorf("%v:", s)
			for _, line := range r.History {
				t.Log(line)
			}
		}
	}
	t.Logf("%d states", states)
}

// TestEveryRuleIsNeeded: without any one rule, a promise is broken in the rule's scenario. With all of them, none is; in
// all states in a long run, else in the first ones.
func TestEveryRuleIsNeeded(t *testing.T) {
	long, enough := os.Getenv("CARILLON_TEST_LONG") != "", 200_000
	if long {
		enough = 5_000_000
	}
	for _, rule := range model.Rules() {
		t.Run(rule.String(), func(t *testing.T) {
			without, err := model.Search(rule.Scenario(), rule, 1_000_000)
			if err != nil || without.Problem == model.None {
				t.Fatalf("no counter-example in %d states, %v", without.States, err)
			}
			with, err := model.Search(rule.Scenario(), 0, enough)
			if with.Problem != model.None || err != nil && long {
				t.Errorf("with all rules: %v in %d states, %v\n%s", with.Problem, with.States, err, strings.Join(with.History, "\n"))
			}
			if rule.Text() == "" || len(without.History) < 2 {
				t.Errorf("%q, history %q", rule.Text(), without.History)
			}
		})
	}
}

// TestTwoOfEach: in a long run, no interleaving of two calls of one kind and two of another breaks a promise, as far as
// some millions of states go.
func TestTwoOfEach(t *testing.T) {
	if os.Getenv("CARILLON_TEST_LONG") == "" {
		return
	}
	const enough = 3_000_000
	states, all, cut := 0, 0, 0
	each := []model.Kind{model.ClaimAck, model.ClaimBury, model.Expand, model.Put, model.Cancel, model.Amend, model.Pause, model.Resume,
		model.Trigger, model.Redrive}
	for i, one := range each {
		for _, other := range each[:i] {
			calls := []model.Kind{one, one, other, other}
			s := model.Scenario{
				Calls: calls, Recurring: slices.Contains(calls, model.Expand), Paused: slices.Contains(calls, model.Resume),
				Dead: slices.Contains(calls, model.Redrive) && !slices.Contains(calls, model.Trigger),
			}
			r, err := model.Search(s, 0, enough)
			if r.Problem != model.None {
				t.Errorf("%v: %v\n%s", s, r.Problem, strings.Join(r.History, "\n"))
			}
			if err != nil {
				cut++
			}
			states, all = states+r.States, all+1
		}
	}
	t.Logf("%d states of %d scenarios, of which %d have more than %d", states, all, cut, enough)
}

// TestPaths: the model knows which commands a call sends, in which order, and which guards its writes have.
func TestPaths(t *testing.T) {
	replaces := func(flip string) []string {
		return []string{"jobs.find", "occurrences.find", "jobs.find", "occurrences.insert", flip}
	}
	orphan := func(back string) []string {
		return []string{
			"occurrences.findAndModify if due", "jobs.find", "occurrences.find", back, "occurrences.update if token",
		}
	}
	for _, c := range []struct {
		kind     model.Kind
		commands []string
		right    bool
	}{
		{model.Cancel, []string{"jobs.find", "jobs.delete if version", "occurrences.find"}, true},
		{model.Cancel, []string{"jobs.find", "jobs.delete", "occurrences.find"}, false},
		{model.Cancel, []string{"jobs.find", "occurrences.delete if revision"}, false}, // the job comes first
		{model.CancelIf, []string{"jobs.find", "jobs.delete if version", "jobs.find"}, true},
		// Without a job it changes nothing.
		{model.CancelIf, []string{"jobs.find", "occurrences.find", "occurrences.delete if revision"}, false},
		{model.Amend, []string{"jobs.find", "jobs.update if version"}, true},
		{model.Amend, []string{"jobs.find", "jobs.update if version, in time"}, true}, // a guard more
		{model.Amend, []string{"jobs.find", "jobs.update if in time"}, false},
		{model.Amend, []string{"jobs.update if version"}, false}, // it has not read the version
		{model.Put, []string{"jobs.find", "occurrences.insert", "jobs.insert", "jobs.update if version, in time"}, true},
		{model.Put, []string{"jobs.find", "occurrences.insert", "jobs.insert", "jobs.update if version"}, false},
		{model.Put, replaces("jobs.update if version, cursor, in time"), true},
		{model.Put, replaces("jobs.update if version, in time"), false}, // as it creates a job
		{model.Put, replaces("jobs.update if cursor, in time"), false},
		{model.ClaimOne, orphan("occurrences.update if token, revision"), true},
		{model.ClaimOne, orphan("occurrences.update if token"), false}, // as it puts back what is no orphan
		{model.ClaimOne, []string{"occurrences.findAndModify if due", "jobs.find", "occurrences.delete if token"}, true},
		{model.ClaimOne, []string{"occurrences.findAndModify if due", "jobs.find", "occurrences.delete"}, false},
		{model.ClaimAck, []string{"occurrences.look", "occurrences.update if due", "jobs.find", "occurrences.find"}, true},
		{model.ClaimAck, []string{"occurrences.look", "occurrences.update"}, false},
		{model.ClaimAck, []string{"occurrences.look", "jobs.find"}, false}, // jobs are read after the stamp
	} {
		commands := make([]model.Command, len(c.commands))
		for i, text := range c.commands {
			commands[i] = command(text)
		}
		if err := c.kind.Accepts(commands); (err == nil) != c.right {
			t.Errorf("%s with %q: %v", c.kind, c.commands, err)
		}
	}
}

// command reads a command as the model prints it.
func command(text string) model.Command {
	name, guards, _ := strings.Cut(text, " if ")
	c := model.Command{Name: name}
	for g := model.Guard(1); g.String() != ""; g <<= 1 {
		if slices.Contains(strings.Split(guards, ", "), g.String()) {
			c.Guards |= g
		}
	}
	return c
}
