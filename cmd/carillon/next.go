package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon/cmd/internal/cli"
	"github.com/carillon-scheduler/carillon/job"
)

// nextCommand shows when a crontab fires. It needs no service and no store. Its options don't come from the
// environment, which is the service's.
type nextCommand struct {
	Crontab  []string `arg:"" help:"The crontab, quoted as one argument, such as '30 9 * * 1-5', '@daily' or '@every 36h'."`
	Timezone string   `default:"UTC" env:"-" placeholder:"NAME" help:"IANA name of the time zone that the crontab is meant in. (${default})"`
	Count    int      `default:"10" env:"-" placeholder:"N" help:"How many instants to show. (${default})"`
	StartAt  string   `env:"-" placeholder:"INSTANT" help:"Show none before this RFC 3339 instant, at which @every begins. (now)"`
}

// Run prints the next instants in UTC and in the zone, and what changes of the clocks do to them.
func (c *nextCommand) Run(out cli.Output) error {
	if len(c.Crontab) > 1 {
		return cli.Usage(c.unquoted())
	}
	crontab, err := job.ParseCrontab(c.Crontab[0])
	if err != nil {
		return cli.Usage(fmt.Errorf("crontab: %w", err))
	}
	zone, err := job.LoadZone(c.Timezone)
	if err != nil {
		return cli.Usage(fmt.Errorf("--timezone: %w", err))
	}
	if c.Count < 1 {
		return cli.Usage(fmt.Errorf("--count: must be at least 1, not %d", c.Count))
	}
	anchor := time.Now().Truncate(time.Millisecond)
	after := anchor
	if c.StartAt != "" {
		if anchor, err = job.ParseInstant(c.StartAt); err != nil {
			return cli.Usage(fmt.Errorf("--start-at: %q %w", c.StartAt, err))
		}
		after = anchor.Add(-1) // the start itself may be an instant
	}

	line := func(utc, wall string, effect job.ClockChange) {
		fmt.Fprintln(out.Stdout, strings.TrimRight(fmt.Sprintf("%-24s  %-30s  %s", utc, wall, effect), " "))
	}
	line("UTC", zone.String(), job.ClockChange{})
	for range c.Count {
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

// unquoted says how to give a crontab that came in several arguments. Where it has a star, the shell has put names of
// files in its place, so that it can't be known.
func (c *nextCommand) unquoted() error {
	meant := strings.Join(c.Crontab, " ")
	if _, err := job.ParseCrontab(meant); err != nil {
		meant = "30 9 * * mon-fri"
	}
	return fmt.Errorf("the crontab came in %d arguments; quote it, so that it is one: carillon next '%s'", len(c.Crontab), meant)
}
