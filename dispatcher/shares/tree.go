package shares

import (
	"math"
	"slices"

	"github.com/carillon-scheduler/carillon/store"
)

// tree is what slots are shared out by: below the root are priorities, below these tenants, then their lanes, and below a
// lane that is behind its parts. It remembers what each has had.
type tree struct {
	root  node
	nodes map[place]*node
	round int
}

// place names a node below another.
type place struct {
	parent *node
	name   string
}

// node is one that shares what its parent has by its weight. It is active in a round if it has anything to claim.
type node struct {
	parent   *node
	children []*node // the active ones
	weight   float64
	served   float64 // how much it has had, divided by its weight
	clock    float64 // the least that an active child has had
	round    int     // when it was active last

	quota store.Quota // of a leaf
}

func newTree() tree { return tree{nodes: make(map[place]*node)} }

// begin begins a round, in which nothing is active yet.
func (t *tree) begin() {
	t.round++
	t.root.children = t.root.children[:0]
}

// child is an active node below another. One that was not active in the last round has had no less than the others.
func (t *tree) child(parent *node, name string, weight float64) *node {
	n, known := t.nodes[place{parent, name}]
	if !known {
		n = &node{parent: parent, round: -1}
		t.nodes[place{parent, name}] = n
	}
	n.weight = weight
	if n.round == t.round {
		return n
	}
	if n.round != t.round-1 {
		n.served = max(n.served, parent.clock)
	}
	n.round = t.round
	n.children = n.children[:0]
	n.quota = store.Quota{}
	parent.children = append(parent.children, n)
	return n
}

// forget forgets what was had if there are many more nodes than lanes: all begin anew.
func (t *tree) forget(lanes int) {
	const each = 8 // a lane has five nodes at most, some of which it shares
	if len(t.nodes) > each*(lanes+each) {
		clear(t.nodes)
		t.root = node{}
	}
}

func (n *node) active() bool { return len(n.children) > 0 }

// least is the leaf below an active node that is to be served next.
func (n *node) least() *node {
	for n.active() {
		next, least := n.children[0], math.Inf(1)
		for _, c := range n.children {
			if c.served < least {
				next, least = c, c.served
			}
		}
		n = next
	}
	return n
}

// serve notes that a leaf has so many more slots; less than none takes back what it could not use.
func (n *node) serve(slots int) {
	for ; n.parent != nil; n = n.parent {
		n.served += float64(slots) / n.weight
		n.parent.clock = n.served
		for _, c := range n.parent.children {
			n.parent.clock = min(n.parent.clock, c.served)
		}
	}
}

// close makes a leaf inactive, and whatever has no other.
func (n *node) close() {
	for ; n.parent != nil && !n.active(); n = n.parent {
		n.parent.children = slices.DeleteFunc(n.parent.children, func(c *node) bool { return c == n })
	}
}
