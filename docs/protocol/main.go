// Protocol searches the protocol of claims, puts and cancellations exhaustively: it tries every interleaving of the
// steps of a few calls. README.md in this folder explains it.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/carillon-scheduler/carillon/docs/protocol/model"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "protocol:", err)
		os.Exit(1)
	}
}

// run executes the command line. It returns an error if a promise is broken although all rules are obeyed.
func run(arguments []string, out io.Writer) error {
	flags := flag.NewFlagSet("protocol", flag.ContinueOnError)
	calls := flags.Int("calls", 2, "search all scenarios of up to this number of calls; 3 takes minutes")
	without := flags.String("without", "", "leave out this rule, and print the history in which a promise is broken; "+
		"\"each\" prints one for each rule")
	limit := flags.Int("limit", 20_000_000, "give up a scenario that has more states")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	if *without != "" {
		return explain(*without, *limit, out)
	}
	return search(*calls, *limit, out)
}

// search searches all scenarios.
func search(calls, limit int, out io.Writer) error {
	states, scenarios := 0, 0
	for n := 1; n <= calls; n++ {
		for _, s := range model.Scenarios(n) {
			r, err := model.Search(s, 0, limit)
			if err != nil {
				return err
			}
			if r.Problem != model.None {
				return fmt.Errorf("scenario %v: %s\n  %s", s, r.Problem, strings.Join(r.History, "\n  "))
			}
			states += r.States
			scenarios++
		}
	}
	_, err := fmt.Fprintf(out, "%d scenarios of up to %d calls, %d states: no promise is broken\n",
		scenarios, calls, states)
	return err
}

// explain prints the history in which a promise is broken without a rule.
func explain(name string, limit int, out io.Writer) error {
	rules := model.Rules()
	if name != "each" {
		rules = slices.DeleteFunc(rules, func(r model.Rule) bool { return r.String() != name })
		if len(rules) == 0 {
			return fmt.Errorf("--without: there is no rule %q; the rules are %v", name, model.Rules())
		}
	}
	for _, rule := range rules {
		r, err := model.Search(rule.Scenario(), rule, limit)
		if err != nil {
			return err
		}
		if r.Problem == model.None {
			return fmt.Errorf("rule %s: no promise is broken without it", rule)
		}
		_, err = fmt.Fprintf(out, "Without %s: %s\n  %s\n", rule, rule.Text(), strings.Join(r.History, "\n  "))
		if err != nil {
			return err
		}
	}
	return nil
}
