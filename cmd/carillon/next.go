package main

import (
	"context"
	"flag"
	"fmt"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon/cmd/internal/cli"
	"github.com/carillon-scheduler/carillon/job"
)

const nextHelp = "Show when a crontab fires next, in UTC and in a time zone. It needs no service. Quote the crontab " +
	"as one argument, such as '30 9 * * 1-5', '@daily' or '@every 36h'."

// nextCommand shows when a crontab fires. It needs no service and no store.
type nextCommand struct {
	timezone, startAt, key, tenant string
	count                          int
}

// Flags declares the options.
func (c *nextCommand) Flags(f *flag.FlagSet) {
	f.StringVar(&c.timezone, "timezone", "UTC", "`NAME`: IANA name of the crontab's time zone.")
	f.StringVar(&c.key, "key", "", "`KEY`: Key of the job; it gives each H in the crontab its value.")
	f.StringVar(&c.tenant, "tenant", job.DefaultTenant, "`NAME`: Tenant of the job, which counts for H too.")
	f.IntVar(&c.count, "count", 10, "`N`: Number of instants to show.")
	f.StringVar(&c.startAt, "start-at", "",
		"`INSTANT`: RFC 3339 instant to start at; @every begins there. (now)")
}

// Run prints the next instants in UTC and in the zone, with the effects of clock changes.
func (c *nextCommand) Run(_ context.Context, in cli.Input) error {
	switch len(in.Arguments) {
	case 0:
		return cli.Usagef("give a crontab, such as 'carillon next @daily'")
	case 1:
	default:
		return cli.Usage(unquoted(in.Arguments))
	}
	if job.HasHash(in.Arguments[0]) && c.key == "" {
		return cli.Usagef("--key: is required, as H in the crontab stands for values that follow from it")
	}
	crontab, err := job.CrontabOf(job.Name{Tenant: c.tenant, Key: c.key}, in.Arguments[0])
	if err != nil {
		return cli.Usage(fmt.Errorf("crontab: %w", err))
	}
	zone, err := job.LoadZone(c.timezone)
	if err != nil {
		return cli.Usage(fmt.Errorf("--timezone: %w", err))
	}
	if c.count < 1 {
		return cli.Usage(fmt.Errorf("--count: must be at least 1, not %d", c.count))
	}
	anchor := time.Now().Truncate(time.Millisecond)
	after := anchor
	if c.startAt != "" {
		if anchor, err = job.ParseInstant(c.startAt); err != nil {
			return cli.Usage(fmt.Errorf("--start-at: %q %w", c.startAt, err))
		}
		after = anchor.Add(-1) // the start itself may be an instant
	}

	line := func(utc, wall string, effect job.ClockChange) {
		fmt.Fprintln(in.Stdout, strings.TrimRight(fmt.Sprintf("%-24s  %-30s  %s", utc, wall, effect), " "))
	}
	line("UTC", zone.String(), job.ClockChange{})
	for range c.count {
		at, ok := crontab.Next(after, zone, anchor)
		if !ok {
			line("none after that", "", job.ClockChange{})
			break
		}
		for _, effect := range crontab.LeftOut(after, at, zone) {
			line("-", "-", effect)
		}
		line(job.FormatTime(at), at.In(zone).Format("Mon 2006-01-02 15:04:05.999 -07:00"), crontab.ClockChange(at, zone))
		after = at
	}
	return nil
}

// unquoted returns the error for a crontab in several arguments. It shows how to quote the crontab, except one with a
// star, which the shell has replaced by file names.
func unquoted(arguments []string) error {
	meant := strings.Join(arguments, " ")
	if _, err := job.CrontabOf(job.Name{}, meant); err != nil {
		meant = "30 9 * * mon-fri"
	}
	return fmt.Errorf("the crontab came in %d arguments; quote it, so that it is one: carillon next '%s'", len(arguments),
		meant)
}
