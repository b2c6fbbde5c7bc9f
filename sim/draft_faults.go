package sim

import (
	"time"

	"github.com/carillon-scheduler/carillon/sim/checker"
)

// fault adds a fault.
func (d *drafter) fault() {
	f := Fault{At: d.upTo(d.Until.D()), For: d.upTo(12*time.Second) + 100, Replica: d.IntN(d.Replicas)}
	switch n := d.IntN(100); {
	case n < 18:
		f.What, f.After = Crash, d.IntN(2) == 0
		d.countdown(&f, 1+d.IntN(40))
	case n < 28:
		f.What = Stop
	case n < 42:
		f.What = Stall
		d.countdown(&f, 0)
		if d.IntN(2) == 0 {
			f.For += span(Lease)
			d.overtaken(&f)
		}
	case n < 54:
		f.What = Lossy
	case n < 64:
		f.What = Cut
	case n < 70:
		f.What, f.Replica = Slow, -1
	case n < 75:
		f.What, f.Replica = Down, -1
	case n < 78:
		f.What, f.Replica = ReadOnly, -1
	case n < 81:
		f.What, f.Replica = Full, -1
	case n < 86:
		f.What, f.By, f.For = Step, d.upTo(20*time.Second)-span(10*time.Second), f.For*3
	case n < 90:
		f.What, f.By, f.For = Drift, d.upTo(100*time.Millisecond)-50, f.For*3
	default:
		f.What, f.Replica, f.For = Receivers, -1, f.For*3
	}
	if at := d.instant(); at < d.Until && d.IntN(2) == 0 { // while something is being delivered
		f.At = at + 5 + d.upTo(30*time.Millisecond)
	}
	d.Faults = append(d.Faults, f)
}

// countdown has a fault come at one of the replica's next writes, or at a command.
func (d *drafter) countdown(f *Fault, command int) {
	f.N = command
	if f.Writes = d.IntN(2) == 0; f.Writes {
		f.N = 1 + d.IntN(12)
	}
}

// instant returns an instant of a job.
func (d *drafter) instant() Span {
	switch o := d.Ops[d.IntN(len(d.Ops))]; {
	case len(o.Instants) > 0:
		return o.Instants[d.IntN(len(o.Instants))]
	case o.Every > 0:
		return (o.At/o.Every + 1 + Span(d.IntN(5))) * o.Every
	default:
		return d.upTo(d.Until.D()) / grid * grid
	}
}

// overtaken adds a put that waits while its replica stands still, one that overtakes it, and a reading after that.
func (d *drafter) overtaken(stall *Fault) {
	if d.IntN(2) == 0 {
		return
	}
	key, at := d.keys[d.IntN(len(d.keys))], stall.At+span(time.Second)
	kinds := []checker.Kind{checker.Put, checker.Put, checker.Get}
	for i, after := range []time.Duration{0, 8 * time.Second, stall.For.D()} {
		o := Op{
			At: at + span(after), Kind: kinds[i], Key: key, Tenant: tenantOf(key),
			Replica: (stall.Replica + min(i, 1)) % d.Replicas,
		}
		if o.Kind == checker.Put {
			d.define(&o)
		}
		d.Ops = append(d.Ops, o)
	}
}
