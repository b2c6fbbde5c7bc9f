package model

import (
	"fmt"
	"slices"
	"sync"
)

// Accepts reports, as an error, that a call of a kind never sends these commands in this order, or that a write lacks a
// guard. A call that is interrupted may send the first of its commands only. A write may have more guards than the
// model's, such as a bound in time of a call whose time does not end in the model.
func (k Kind) Accepts(commands []Command) error {
	automaton := paths()[k]
	at := automaton.silently([]place{{next: k.start()}})
	for i, command := range commands {
		var next []place
		for _, p := range at {
			for _, e := range automaton[p] {
				if e.command.Name == command.Name && e.command.Guards&^command.Guards == 0 {
					next = append(next, e.to)
				}
			}
		}
		if len(next) == 0 {
			return fmt.Errorf("%s sends %q after %q, which no call of the model does; it may send %q",
				k, command, commands[:i], automaton.commands(at))
		}
		at = automaton.silently(next)
	}
	return nil
}

// start is the first step of a kind.
func (k Kind) start() step {
	if k == Pause {
		return changeWrite
	}
	return 0
}

// place is the place of a call in its steps: the next one, and the reads that decide over those that follow. The more
// cases it tells apart, the less may a write in one case have the guards of another.
type place struct {
	next         step
	job          bool  // the call has read a job
	read         uint8 // the reads of a claim's round trip that were answered
	won, orphans bool  // a claim has any
}

func (c *call) place() place {
	p := place{next: c.next, job: c.job.exists()}
	if c.kind.claims() {
		p.won, p.orphans = c.won != 0, c.orphans != 0
		if c.next == claimRead {
			p.read = c.n
		}
	}
	return p
}

// path is the way from one place to another. Writes of further documents by the same command have none.
type path struct {
	command Command // none if it has no name
	to      place
}

// automaton has all paths of a kind.
type automaton map[place][]path

// silently adds the places that are reached without a command.
func (a automaton) silently(at []place) []place {
	for i := 0; i < len(at); i++ {
		for _, p := range a[at[i]] {
			if p.command.Name == "" && !slices.Contains(at, p.to) {
				at = append(at, p.to)
			}
		}
	}
	return at
}

// commands returns the commands that may be sent at some places.
func (a automaton) commands(at []place) (all []Command) {
	for _, from := range at {
		for _, p := range a[from] {
			if p.command.Name != "" && !slices.Contains(all, p.command) {
				all = append(all, p.command)
			}
		}
	}
	return all
}

// paths walks through all scenarios of two calls, and the scenarios of all rules.
var paths = sync.OnceValue(func() (all [kinds]automaton) {
	for k := range all {
		all[k] = make(automaton)
	}
	scenarios := Scenarios(2)
	for _, r := range Rules() {
		scenarios = append(scenarios, r.Scenario())
	}
	for _, s := range scenarios {
		_, _ = walk(s, 0, 20_000, func(before, after *World, call int, command Command) {
			from, to := before.call[call].place(), after.call[call].place()
			if from == to {
				return
			}
			kind := before.call[call].kind
			if p := (path{command, to}); !slices.Contains(all[kind][from], p) {
				all[kind][from] = append(all[kind][from], p)
			}
		})
	}
	return all
})
