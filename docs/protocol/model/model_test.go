package model_test

import (
	"os"
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

// TestEveryRuleIsNeeded: without any one rule, a promise is broken in the rule's scenario. With all of them, none is.
func TestEveryRuleIsNeeded(t *testing.T) {
	for _, rule := range model.Rules() {
		t.Run(rule.String(), func(t *testing.T) {
			without, err := model.Search(rule.Scenario(), rule, 1_000_000)
			if err != nil || without.Problem == model.None {
				t.Fatalf("no counter-example in %d states, %v", without.States, err)
			}
			if rule.Text() == "" || len(without.History) < 2 {
				t.Errorf("%q, history %q", rule.Text(), without.History)
			}
		})
	}
}

// TestPaths: the model knows which commands a call sends, and in which order.
func TestPaths(t *testing.T) {
	for _, c := range []struct {
		kind     model.Kind
		commands []string
		right    bool
	}{
		{model.Cancel, []string{"jobs.find", "jobs.delete", "occurrences.find"}, true},
		{model.Cancel, []string{"jobs.find", "occurrences.delete"}, false}, // the job comes first
		{model.CancelIf, []string{"jobs.find", "jobs.delete", "jobs.find"}, true},
		{model.CancelIf, []string{"jobs.find", "occurrences.find", "occurrences.delete"}, false}, // without a job it changes nothing
		{model.Amend, []string{"jobs.find", "jobs.update"}, true},
		{model.Amend, []string{"jobs.update"}, false}, // it has not read the version
		{model.ClaimOne, []string{"occurrences.findAndModify", "jobs.find", "occurrences.delete"}, true},
		{model.ClaimAck, []string{"occurrences.look", "occurrences.update", "jobs.find", "occurrences.find"}, true},
		{model.ClaimAck, []string{"occurrences.look", "jobs.find"}, false}, // jobs are read after the stamp
	} {
		if err := c.kind.Accepts(c.commands); (err == nil) != c.right {
			t.Errorf("%s with %q: %v", c.kind, c.commands, err)
		}
	}
}
