package fairqueue

import (
	"container/heap"
	"time"

	"github.com/carillon-scheduler/carillon/store"
)

// tree is the hierarchy by which slots are divided: below the root are the priorities, below these the tenants, then
// their lanes, and below a lane that is behind its two parts. It remembers how many slots each node has had.
type tree struct {
	root  node
	nodes map[place]*node
}

// place names a node below another.
type place struct {
	parent *node
	name   string
}

// node competes by its weight for the slots of its parent while it is active: while it has due occurrences.
type node struct {
	parent *node
	below  int      // how many children it has
	active nodeHeap // the active ones of them
	index  int      // in its parent's heap; -1 while it is not active
	weight float64
	served float64   // how many slots it has had, divided by its weight
	clock  float64   // the least of an active child's served
	since  time.Time // when it became active

	lane  *lane // of a leaf
	part  part
	quota int // its number in the allotment under way; -1 if it has none
}

// part is the part of its lane that a leaf is for.
type part int

const (
	whole part = iota
	overdue
	fresh
)

func newTree() tree { return tree{nodes: make(map[place]*node)} }

// child finds or makes a node below another.
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

// forget drops nodes if there are many more than lanes: those that would come back with the same count, since they have
// had no more than the nodes that are served now. No node may be active.
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

// least is the leaf below an active node that is served next.
func (n *node) least() *node {
	for len(n.active) > 0 {
		n = n.active[0]
	}
	return n
}

// join makes a node and those above it active. A node that was not active counts as served as much as the others.
func (n *node) join(since time.Time) {
	for ; n.parent != nil && n.index < 0; n = n.parent {
		n.served, n.since = max(n.served, n.parent.clock), since
		heap.Push(&n.parent.active, n)
	}
}

// leave makes a node inactive, and those above it that have no other active child.
func (n *node) leave() {
	for ; n.parent != nil && n.index >= 0 && len(n.active) == 0; n = n.parent {
		heap.Remove(&n.parent.active, n.index)
	}
}

// serve counts slots that a leaf got; less than zero takes back slots that it could not use.
func (n *node) serve(slots int) {
	for ; n.parent != nil; n = n.parent {
		n.served += float64(slots) / n.weight
		if n.index >= 0 {
			heap.Fix(&n.parent.active, n.index)
			n.parent.clock = n.parent.active[0].served
		}
	}
}

// newQuota is the quota of a leaf's claim, without a limit yet. Before is the time before which due occurrences are
// overdue.
func (n *node) newQuota(before time.Time) store.Quota {
	switch n.part {
	case overdue:
		return store.Quota{Lane: n.lane.Lane, Until: before}
	case fresh:
		return store.Quota{Lane: n.lane.Lane, After: before}
	default:
		return store.Quota{Lane: n.lane.Lane}
	}
}

// nodeHeap is a heap of active nodes, with that on top which is served next: the least served, and of these the one
// that has waited longest.
type nodeHeap []*node

func (c nodeHeap) Len() int { return len(c) }
func (c nodeHeap) Less(i, j int) bool {
	if c[i].served != c[j].served {
		return c[i].served < c[j].served
	}
	return c[i].since.Before(c[j].since)
}
func (c nodeHeap) Swap(i, j int) {
	c[i], c[j] = c[j], c[i]
	c[i].index, c[j].index = i, j
}

// Push implements [heap.Interface].
func (c *nodeHeap) Push(x any) {
	n := x.(*node)
	n.index = len(*c)
	*c = append(*c, n)
}

// Pop implements [heap.Interface].
func (c *nodeHeap) Pop() any {
	last := len(*c) - 1
	n := (*c)[last]
	(*c)[last], *c = nil, (*c)[:last]
	n.index = -1
	return n
}
