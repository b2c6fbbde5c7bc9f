package webhook

import (
	"flag"

	"github.com/carillon-scheduler/carillon/callbacks"
)

// Flags declares no options: there is nothing to set up.
func (*Options) Flags(*flag.FlagSet) {}

// Open makes the sender of a replica.
func (o *Options) Open(r callbacks.Replica) (callbacks.Sender, error) {
	o.IdleConns, o.UserAgent = max(r.Concurrency, 64), r.UserAgent
	return New(*o), nil
}
