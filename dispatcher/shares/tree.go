package shares

import (
	"container/heap"
	"time"

	"github.com/carillon-scheduler/carillon/store"
)

// tree is what slots are shared out by: below the root are priorities, below these tenants, then their lanes, and below
// a lane that is behind its parts. It remembers what each has had.
type tree struct {
	root  node
	nodes map[place]*node
}

// place names a node below another.
type place struct {
	parent *node
	name   string
}

// node is one that shares what its parent has by its weight, while it is active: while there is anything to claim for
// it.
type node struct {
	parent *node
	below  int   // how many children it has
	active crowd // those of them that are
	index  int   // among its parent's; -1 while it is not active
	weight float64
	served float64   // how much it has had, divided by its weight
	clock  float64   // the least that an active child has had
	since  time.Time // when it became active

	lane  *lane // of a leaf
	part  part
	quota int // its number in the allotment under way; -1 if it has none
}

// part is what of its lane a leaf is for.
type part int

const (
	whole part = iota
	overdue
	fresh
)

func newTree() tree { return tree{nodes: make(map[place]*node)} }

// child is a node below another.
func (t *tree) child(parent *node, name string, weight float64) *node {
	n, known := t.nodes[place{parent, name}]
	if !known {
		n = &node{parent: parent, index: -1, quota: -1}
		parent.below++
		t.nodes[place{parent, name}] = n
	}
	n.weight = weight
	return n
}

// forget forgets, if there are many more nodes than lanes, those that would have had as much without it when they come
// back: no more than those have that are served now. None is active.
func (t *tree) forget(lanes int) {
	const each = 8 // a lane has five nodes at most, some of which it shares
	if len(t.nodes) <= each*(lanes+each) {
		return
	}
	for forgotten := true; forgotten; { // a node goes after those below it
		forgotten = false
		for at, n := range t.nodes {
			if n.below == 0 && n.served <= n.parent.clock {
				delete(t.nodes, at)
				n.parent.below--
				forgotten = true
			}
		}
	}
}

// least is the leaf below an active node that is to be served next.
func (n *node) least() *node {
	for len(n.active) > 0 {
		n = n.active[0]
	}
	return n
}

// join makes a node active. One that was not has had no less than the others.
func (n *node) join(since time.Time) {
	for ; n.parent != nil && n.index < 0; n = n.parent {
		n.served, n.since = max(n.served, n.parent.clock), since
		heap.Push(&n.parent.active, n)
	}
}

// leave makes a node inactive, and whatever has no other.
func (n *node) leave() {
	for ; n.parent != nil && n.index >= 0 && len(n.active) == 0; n = n.parent {
		heap.Remove(&n.parent.active, n.index)
	}
}

// serve notes that a leaf has so many more slots; less than none takes back what it could not use.
func (n *node) serve(slots int) {
	for ; n.parent != nil; n = n.parent {
		n.served += float64(slots) / n.weight
		if n.index >= 0 {
			heap.Fix(&n.parent.active, n.index)
			n.parent.clock = n.parent.active[0].served
		}
	}
}

// about is what a leaf claims, given when what is overdue was due.
func (n *node) about(before time.Time) store.Quota {
	switch n.part {
	case overdue:
		return store.Quota{Lane: n.lane.Lane, Until: before}
	case fresh:
		return store.Quota{Lane: n.lane.Lane, After: before}
	default:
		return store.Quota{Lane: n.lane.Lane}
	}
}

// crowd is a heap of active nodes, with that on top which is to be served next: who has had least, and of those who has
// waited longest.
type crowd []*node

func (c crowd) Len() int { return len(c) }
func (c crowd) Less(i, j int) bool {
	if c[i].served != c[j].served {
		return c[i].served < c[j].served
	}
	return c[i].since.Before(c[j].since)
}
func (c crowd) Swap(i, j int) {
	c[i], c[j] = c[j], c[i]
	c[i].index, c[j].index = i, j
}

// Push implements [heap.Interface].
func (c *crowd) Push(x any) {
	n := x.(*node)
	n.index = len(*c)
	*c = append(*c, n)
}

// Pop implements [heap.Interface].
func (c *crowd) Pop() any {
	last := len(*c) - 1
	n := (*c)[last]
	(*c)[last], *c = nil, (*c)[:last]
	n.index = -1
	return n
}
