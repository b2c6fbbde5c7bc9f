package sim

import (
	"time"

	"github.com/carillon-scheduler/carillon/sim/checker"
)

// temporary adds a caller whose key expires, or is rotated some times, or both, and may be revoked. It goes on asking,
// half of the time near one of these moments, by its latest secret and by the one before.
func (d *drafter) temporary() {
	moments := []Span{d.upTo(d.Until.D())}
	if d.IntN(2) == 0 {
		d.Expires = span(15*time.Second) + d.upTo(d.Until.D())
		moments = append(moments, d.Expires)
	}
	for range d.IntN(4) {
		o := Op{
			At: d.upTo(d.Until.D()), Kind: checker.Rotate, Caller: temporary, Replica: d.IntN(d.Replicas), Again: 3,
			Overlap: []Span{0, 1000, 5000, 20_000, 60_000}[d.IntN(5)], LoseReply: d.IntN(4) == 0,
		}
		d.Ops = append(d.Ops, o)
		moments = append(moments, o.At, o.At+o.Overlap)
	}
	if d.IntN(4) == 0 {
		o := Op{At: d.upTo(d.Until.D()), Kind: checker.Revoke, Caller: temporary, Replica: d.IntN(d.Replicas), Again: 4}
		d.Ops = append(d.Ops, o)
		moments = append(moments, o.At)
	}
	kinds := []checker.Kind{checker.Preview, checker.Preview, checker.List, checker.Put, checker.Get}
	for range 40 {
		o := Op{
			At: d.upTo(d.Until.D()), Kind: kinds[d.IntN(len(kinds))], Caller: temporary, Former: d.IntN(2),
			Replica: d.IntN(d.Replicas),
		}
		if d.IntN(2) == 0 {
			o.At = max(0, moments[d.IntN(len(moments))]-span(2*time.Second)) + d.upTo(12*time.Second)
		}
		switch o.Kind {
		case checker.Preview:
			o.Wait = 60_000
		case checker.Put:
			o.Key = "temporary"
			d.define(&o)
		case checker.Get:
			o.Key = "temporary"
		default:
		}
		d.Ops = append(d.Ops, o)
	}
}

// remote adds a replica that does not reach the store for longer than it may go by its memory of keys, and a caller
// that makes requests there that need no store. In most cases the caller's key is revoked or rotated elsewhere
// meanwhile.
func (d *drafter) remote() {
	away := d.IntN(d.Replicas)
	cut := Fault{What: Cut, At: d.Until + span(70*time.Second), Replica: away}
	cut.For = span(390*time.Second) + d.upTo(time.Minute)
	d.Until = cut.At + cut.For + span(30*time.Second)
	d.Faults = append(d.Faults, cut)
	end := Op{
		At: cut.At + d.upTo(2*time.Minute), Kind: []checker.Kind{checker.Revoke, checker.Revoke, checker.Rotate}[d.IntN(3)],
		Caller: remote, Replica: away + 1 + d.IntN(d.Replicas-1), Again: 4,
	}
	end.Replica %= d.Replicas
	if d.IntN(4) > 0 {
		d.Ops = append(d.Ops, end)
	}
	for at := cut.At - span(20*time.Second); at < d.Until; at += 5000 + d.upTo(10*time.Second) {
		d.Ops = append(d.Ops, Op{
			At: at, Kind: checker.Preview, Wait: 60_000, Caller: remote, Former: d.IntN(2), Replica: away,
		})
	}
}
