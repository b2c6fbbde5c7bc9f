// Package remote has the commands that ask a running service through its API. They show the documents of the answers,
// with members that this version does not know, so that they work with services of other versions.
package remote

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/carillon-scheduler/carillon/cmd/internal/cli"
)

// session is one run of a command.
type session struct {
	*service
	*printer
	in cli.Input
}

// command is a command that asks a service. Its set-up declares the command's own options, which are read when the
// command runs.
type command struct {
	connection connection
	output     output
	declare    func(f *flag.FlagSet)
	run        func(ctx context.Context, s *session, arguments []string) error
}

// Flags declares the options.
func (c *command) Flags(f *flag.FlagSet) {
	c.connection.flags(f)
	c.output.flags(f)
	if c.declare != nil {
		c.declare(f)
	}
}

// Run asks the service.
func (c *command) Run(ctx context.Context, in cli.Input) error {
	service, err := c.connection.open(in.Stderr)
	if err != nil {
		return err
	}
	return exit(c.run(ctx, &session{service, c.output.printer(in), in}, in.Arguments))
}

// parts of a command that differ from run to run.
type parts struct {
	declare func(f *flag.FlagSet)
	run     func(ctx context.Context, s *session, arguments []string) error
}

// define makes a command with new parts for each run.
func define(c cli.Command, parted func() parts) cli.Command {
	c.New = func() cli.Runner {
		p := parted()
		return &command{declare: p.declare, run: p.run}
	}
	return c
}

// simple makes a command without options of its own.
func simple(c cli.Command, run func(ctx context.Context, s *session, arguments []string) error) cli.Command {
	return define(c, func() parts { return parts{run: run} })
}

// listing makes a command that lists all items at a path.
func listing(c cli.Command, r request, columns ...column) cli.Command {
	r.method = http.MethodGet
	return simple(c, func(ctx context.Context, s *session, _ []string) error {
		return s.list(ctx, r, 0, columns, nil)
	})
}

// jobKeys completes the key of a job: it asks the service.
func jobKeys(ctx context.Context, r cli.Runner, arguments []string) []string {
	return complete(ctx, r, arguments, request{method: http.MethodGet, path: path("jobs")}, "key")
}

// complete completes the first argument by a member of the items of a list.
func complete(ctx context.Context, r cli.Runner, arguments []string, list request, member string) (all []string) {
	c, ok := r.(*command)
	if !ok || len(arguments) != 1 {
		return nil
	}
	c.connection.attempts = 1
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	s, err := c.connection.open(io.Discard)
	if err != nil {
		return nil
	}
	list.query = url.Values{"limit": {"100"}}
	if member == "key" && arguments[0] != "" {
		list.query.Set("prefix", arguments[0])
	}
	a, err := s.do(ctx, list)
	if err != nil {
		return nil
	}
	page, err := read[struct{ Items []document }](a.body)
	if err != nil {
		return nil
	}
	for _, item := range page.Items {
		if name, ok := item[member].(string); ok {
			all = append(all, name)
		}
	}
	return all
}

// completing completes the first argument by a member of the items at a path.
func completing(path, member string, several bool) func(context.Context, cli.Runner, []string) []string {
	return func(ctx context.Context, r cli.Runner, arguments []string) []string {
		return complete(ctx, r, arguments, request{method: http.MethodGet, path: path, several: several}, member)
	}
}

// one returns the single argument of a command.
func one(arguments []string, what string) (string, error) {
	if len(arguments) != 1 || arguments[0] == "" {
		return "", cli.Usagef("name %s", what)
	}
	return arguments[0], nil
}

// show makes a request and prints the document of the answer.
func (s *session) show(ctx context.Context, r request) error {
	a, err := s.do(ctx, r)
	if err != nil || len(a.body) == 0 {
		return err
	}
	s.now = a.at
	d, err := readShown(a.body)
	if err != nil {
		return err
	}
	return s.one(d)
}

// list prints the items of all pages, up to most; 0 means all. It calls each, unless that is nil, instead of printing.
func (s *session) list(ctx context.Context, r request, most int, columns []column, each func(shown) error) error {
	if each == nil {
		each = func(d shown) error {
			s.item(d)
			return nil
		}
	}
	left := most
	for {
		if r.query == nil {
			r.query = url.Values{}
		}
		const largest = 1000 // page
		switch {
		case r.unpaged:
		case most == 0 || left >= largest:
			r.query.Set("limit", strconv.Itoa(largest))
		default:
			r.query.Set("limit", strconv.Itoa(left))
		}
		a, err := s.do(ctx, r)
		if err != nil {
			return err
		}
		s.now = a.at
		page, err := read[struct {
			Items                     []json.RawMessage
			NextCursor                string
			Incomplete                bool
			MissingFrom, MissingUntil string
		}](a.body)
		if err != nil {
			return err
		}
		if page.Incomplete {
			fmt.Fprintf(s.in.Stderr, "carillon: entries between %s and %s may be missing\n", page.MissingFrom, page.MissingUntil)
		}
		for _, raw := range page.Items {
			item, err := readShown(raw)
			if err != nil {
				return err
			}
			if err := each(item); err != nil {
				return err
			}
		}
		left -= len(page.Items)
		if page.NextCursor == "" || most > 0 && left <= 0 {
			break
		}
		r.query.Set("cursor", page.NextCursor)
	}
	if columns == nil {
		return nil
	}
	return s.end(columns)
}

// file reads a file of JSON or YAML as JSON; "-" is the standard input. JSON keeps its bytes.
func (s *session) file(name string) (json.RawMessage, error) {
	if name == "" {
		return nil, cli.Usagef("-f is missing: name a file of JSON or YAML, or - for the standard input")
	}
	content, err := s.raw(name)
	if err != nil {
		return nil, err
	}
	if json.Valid(content) {
		return content, nil
	}
	converted, err := yaml.YAMLToJSON(content)
	if err == nil && !json.Valid(converted) {
		err = errors.New("it has several documents, or none")
	}
	if err != nil {
		return nil, cli.Usagef("%s is neither JSON nor YAML: %w", name, err)
	}
	return converted, nil
}

// raw reads a file; "-" is the standard input.
func (s *session) raw(name string) (content []byte, err error) {
	if name == "-" {
		content, err = io.ReadAll(s.in.Stdin)
	} else {
		content, err = os.ReadFile(name)
	}
	if err != nil {
		return nil, cli.Usage(err)
	}
	return content, nil
}

// sure asks before something that can't be undone. Without a terminal it needs --yes.
func (s *session) sure(yes bool, question string) error {
	if yes {
		return nil
	}
	if f, ok := s.in.Stdin.(*os.File); !ok || !terminalOf(f).is {
		return cli.Usagef("%s Give --yes: the standard input is no terminal, so nobody can be asked", question)
	}
	fmt.Fprintf(s.in.Stderr, "%s [y/N] ", question)
	var reply string
	_, _ = fmt.Fscanln(s.in.Stdin, &reply)
	if reply = strings.ToLower(reply); reply != "y" && reply != "yes" {
		return errors.New("nothing was done")
	}
	return nil
}

// progress shows how far a long command is, on a terminal.
type progress struct {
	w    io.Writer
	on   bool
	what string
	last time.Time
}

func (s *session) progress(what string) *progress {
	return &progress{w: s.in.Stderr, on: terminalOf(s.in.Stderr).is, what: what}
}

// note shows the state: of is 0 if the end is not known.
func (p *progress) note(done, of int) {
	if !p.on || time.Since(p.last) < 100*time.Millisecond && done != of {
		return
	}
	p.last = time.Now()
	if of == 0 {
		fmt.Fprintf(p.w, "\r\x1b[K%s %d", p.what, done)
		return
	}
	const width = 30
	full := width * done / of
	bar := strings.Repeat("#", full) + strings.Repeat(".", width-full)
	fmt.Fprintf(p.w, "\r\x1b[K%s [%s] %d of %d", p.what, bar, done, of)
}

// end takes the state off the terminal.
func (p *progress) end() {
	if p.on && !p.last.IsZero() {
		fmt.Fprintf(p.w, "\r\x1b[K")
	}
}
