package main

import (
	"context"
	"errors"
	"flag"
	"fmt"

	"github.com/carillon-scheduler/carillon/audit"
	"github.com/carillon-scheduler/carillon/cmd/internal/cli"
	"github.com/carillon-scheduler/carillon/cmd/internal/service"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/bounded"
	"github.com/carillon-scheduler/carillon/store/storeurl"
)

const limitsCopyHelp = "Copy the limits that tenants have of their own from one store to another: an export has " +
	"none. Tenants that have limits in the other store already are skipped."

// copyCommand copies secrets, keys or limits, which exports leave out, from one store to another.
type copyCommand struct {
	what     string // in the plural
	copy     copier
	from, to string
}

// copier copies records from one store to another, and returns the numbers of copies and of those that are there
// already.
type copier func(ctx context.Context, from, to store.Records) (copied, there int, err error)

// copying returns a command that copies one kind of records.
func copying(what, help string, by copier) cli.Command {
	name := what + " copy"
	return cli.Command{
		Name: name, Help: help, New: func() cli.Runner { return audited(name, &copyCommand{what: what, copy: by}) },
		Example: "carillon " + name + " --store=sqlite:carillon.db --to=sqlite:other.db",
	}
}

// Flags declares the options.
func (c *copyCommand) Flags(f *flag.FlagSet) {
	f.StringVar(&c.from, "store", "", "`URL`: The store that has the "+c.what+", as for serve.")
	f.StringVar(&c.to, "to", "", "`URL`: The store to copy them to.")
}

// Run copies, and prints the number of copies on standard error.
func (c *copyCommand) Run(ctx context.Context, in cli.Input, line *audit.Entry) (err error) {
	open := func(option, url string, by func(context.Context, string) (store.Store, error)) (store.Store, error) {
		switch {
		case url == "":
			return nil, cli.Usagef("--%s is missing: name the store, as for serve", option)
		case service.Alone(url):
			return nil, cli.Usagef("--%s: %q is the memory of one process, which no other can reach", option, url)
		}
		s, err := by(ctx, url)
		if err != nil {
			return nil, fmt.Errorf("--%s: %w", option, err)
		}
		return s, nil
	}
	from, err := open("store", c.from, service.OpenExisting)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	to, err := open("to", c.to, service.OpenStore)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	line.Target = storeurl.Address(c.to)
	copied, there, err := c.copy(ctx, from, bounded.Records(to))
	line.Changed = copied
	fmt.Fprintf(in.Stderr, "copied: %d %s; there already: %d\n", copied, c.what, there)
	return err
}
