package fairqueue

import (
	"container/heap"
	"time"

	"github.com/carillon-scheduler/carillon/store"
)

// tree is the hierarchy by which slots are divided: the priorities are below the root, the tenants below these, then
// their lanes, and below a lane that is behind its two parts. It counts the slots of each node.
type tree struct {
	root  node
	nodes map[place]*node
}

// place is a key of a child: its parent and its name.
type place struct {
	parent *node
	name   string
}

// node competes for its parent's slots by its weight while it is active, that is while it has due occurrences.
type node struct {
	parent *node
	below  int      // the number of its children
	active nodeHeap // its active children
	index  int      // in its parent's heap; -1 while it is not active
	weight float64
	served float64   // the slots that it has had, divided by its weight
	clock  float64   // the least served of its active children
	since  time.Time // when it became active

	lane  *lane // of a leaf
	part  part
	quota int // the index of its quota in the present allotment; -1 if it has none
}

// part is a leaf's part of its lane.
type part int

const (
	whole part = iota
	overdue
	fresh
)

func newTree() tree { return tree{nodes: make(map[place]*node)} }

// child finds or makes a child of a node.
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

// forget drops nodes if there are many more than lanes: those that would return with the same count, since they have
// had no more than the nodes that are served now. No node may be active.
func (t *tree) forget(lanes int) {
	const each = 8 // a lane has at most five nodes, some of them shared
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

// least returns the leaf that is served next below an active node.
func (n *node) least() *node {
	for len(n.active) > 0 {
		n = n.active[0]
	}
	return n
}

// join makes a node and its ancestors active. A node that was not active counts as served as much as the others.
func (n *node) join(since time.Time) {
	for ; n.parent != nil && n.index < 0; n = n.parent {
		n.served, n.since = max(n.served, n.parent.clock), since
		heap.Push(&n.parent.active, n)
	}
}

// leave makes a node inactive, and its ancestors that have no other active child.
func (n *node) leave() {
	for ; n.parent != nil && n.index >= 0 && len(n.active) == 0; n = n.parent {
		heap.Remove(&n.parent.active, n.index)
	}
}

// serve counts slots that a leaf got; a negative number takes back slots that it could not use.
func (n *node) serve(slots int) {
	for ; n.parent != nil; n = n.parent {
		n.served += float64(slots) / n.weight
		if n.index >= 0 {
			heap.Fix(&n.parent.active, n.index)
			n.parent.clock = n.parent.active[0].served
		}
	}
}

// newQuota returns the quota for a leaf's claim, still without a limit. Occurrences due before the time before are
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

// nodeHeap is a heap of active nodes, with the next one to serve on top: the least served, and of these the one that
// has waited longest.
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
