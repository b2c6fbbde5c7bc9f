package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/user"
	"strconv"
	"time"

	"github.com/carillon-scheduler/carillon/audit"
	"github.com/carillon-scheduler/carillon/cmd/internal/cli"
	"github.com/carillon-scheduler/carillon/store"
)

// changer is a command that changes a store without a running service.
type changer interface {
	Flags(f *flag.FlagSet)
	// Run makes the change, and completes its line of the audit trail.
	Run(ctx context.Context, in cli.Input, line *audit.Entry) error
}

// audited returns a command with the option --audit. It writes a line of the trail for the change that it makes, done
// or not, and none if its options are wrong.
func audited(name string, change changer) cli.Runner {
	return &auditedCommand{changer: change, action: "carillon " + name}
}

type auditedCommand struct {
	changer
	action, target string
}

// Flags declares the options.
func (c *auditedCommand) Flags(f *flag.FlagSet) {
	c.changer.Flags(f)
	cli.Text(f, &c.target, "audit", "`PATH`: File of the audit trail, to which a line about this change is added, as "+
		"for serve. stdout stands for standard error here. See docs/audit.md. (none)")
}

// Run opens the trail, makes the change, and writes its line.
func (c *auditedCommand) Run(ctx context.Context, in cli.Input) (err error) {
	trail, err := audit.OpenFile(c.target, in.Stderr)
	if err != nil {
		return cli.Usagef("--audit: %w", err) // before anything is changed
	}
	defer func() { err = errors.Join(err, trail.Close()) }()
	line := audit.Entry{Action: c.action, Principal: "command:" + systemUser()}
	line.From, _ = os.Hostname() // it is left out if it is unknown
	err = c.changer.Run(ctx, in, &line)
	if _, nothing := errors.AsType[cli.UsageError](err); nothing {
		return err
	}
	line.Time, line.Result = time.Now().UTC().Truncate(time.Millisecond), resultOf(err)
	if untold := trail.Write(line); untold != nil {
		return errors.Join(err, fmt.Errorf("--audit: the trail has no line about this, whose result is %q: %w",
			line.Result, untold))
	}
	return err
}

// resultOf returns the result of a command for the trail.
func resultOf(err error) audit.Result {
	switch {
	case err == nil:
		return audit.Done
	case errors.Is(err, store.ErrNotFound):
		return audit.Refused
	default:
		return audit.Failed
	}
}

// systemUser returns the name of the user who runs this process, or else the number.
func systemUser() string {
	if u, err := user.Current(); err == nil && u.Username != "" {
		return u.Username
	}
	return strconv.Itoa(os.Getuid())
}
