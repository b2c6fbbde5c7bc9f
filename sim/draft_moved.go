package sim

import (
	"time"

	"github.com/carillon-scheduler/carillon/sim/checker"
)

// early gives some plans an early window.
func (d *drafter) early() {
	if d.IntN(8) == 0 {
		d.Early = []Span{300, 1000, 3000}[d.IntN(3)]
	}
}

// spread gives some puts a spread; a deadline is longer.
func (d *drafter) spread(o *Op) {
	if d.IntN(8) > 0 {
		return
	}
	o.Spread = 1 + d.upTo(4*time.Second)
	if o.Deadline > 0 && o.Deadline <= o.Spread {
		o.Deadline += o.Spread
	}
}

// moved has clients ask to which times spreads move instants: by previews of the same jobs, and by readings soon after
// the puts.
func (d *drafter) moved() {
	ask := func(o Op, put Op, at Span) {
		o.Key, o.Tenant, o.At, o.Replica = put.Key, put.Tenant, at, d.IntN(d.Replicas)
		d.Ops = append(d.Ops, o)
	}
	for _, o := range d.Ops { // those that are added are not met
		for _, put := range append(o.Items, o) {
			if put.Spread == 0 {
				continue
			}
			if put.Wait == 0 && d.IntN(4) > 0 {
				preview := put
				preview.Kind, preview.Items = checker.Preview, nil
				preview.Match, preview.Twice, preview.Delay, preview.Again = false, 0, 0, 1
				preview.LoseRequest, preview.LoseReply, preview.Caller = false, false, ""
				preview.To = "" // it need not be allowed
				ask(preview, put, put.At+d.upTo(4*time.Second))
			}
			if d.IntN(2) == 0 {
				ask(Op{Kind: checker.Get}, put, o.At+o.Delay+d.upTo(2*time.Second))
			}
		}
	}
}
