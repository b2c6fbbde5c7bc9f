package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/carillon-scheduler/carillon/sim/chaos"
)

// onStore runs real replicas on a real store.
func onStore(ctx context.Context, out io.Writer, o options) error {
	settable := o.program == ""
	if settable {
		folder, err := os.MkdirTemp("", "carillon-sim-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(folder) //nolint:errcheck // it is only temporary
		if o.program, err = buildSettable(ctx, folder); err != nil {
			return err
		}
	}
	fmt.Fprintf(out, "seed %d, %g minutes; the faults:\n", o.seed, o.minutes)
	result, err := chaos.Run(ctx, chaos.Options{
		Program: o.program, Settable: settable, Store: o.store, Control: o.control, Disk: o.disk,
		Length: time.Duration(o.minutes * float64(time.Minute)), Seed: o.seed, Out: out,
	})
	if err != nil {
		return err
	}
	if !result.Judge(out) {
		return errors.New("the run has shown something wrong; it is told above")
	}
	fmt.Fprintf(out, "all guarantees held, with seed %d\n", o.seed)
	return os.RemoveAll(result.Folder)
}
