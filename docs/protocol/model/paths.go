package model

import (
	"fmt"
	"slices"
	"sync"
)

// Accepts reports, as an error, that a call of a kind never sends these commands in this order. A call that is
// interrupted may send the first of its commands only.
func (k Kind) Accepts(commands []string) error {
	automaton := paths()[k]
	at := automaton.silently([]place{{next: k.start()}})
	for i, command := range commands {
		var next []place
		for _, p := range at {
			for _, e := range automaton[p] {
				if e.command == command {
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

// place is the place of a call in its steps: the next one, and which reads of a claim's round trip were answered.
type place struct {
	next step
	read uint8
}

func (c *call) place() place {
	if c.kind.claims() && c.next == claimRead {
		return place{c.next, c.n}
	}
	return place{next: c.next}
}

// path is the way from one place to another. Writes of further documents by the same command have none.
type path struct {
	command string
	to      place
}

// automaton has all paths of a kind.
type automaton map[place][]path

// silently adds the places that are reached without a command.
func (a automaton) silently(at []place) []place {
	for i := 0; i < len(at); i++ {
		for _, p := range a[at[i]] {
			if p.command == "" && !slices.Contains(at, p.to) {
				at = append(at, p.to)
			}
		}
	}
	return at
}

// commands returns the commands that may be sent at some places.
func (a automaton) commands(at []place) (all []string) {
	for _, from := range at {
		for _, p := range a[from] {
			if p.command != "" && !slices.Contains(all, p.command) {
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
		_, _ = walk(s, 0, 20_000, func(before, after *World, call int, command string) {
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
