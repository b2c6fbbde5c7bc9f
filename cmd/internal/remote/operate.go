package remote

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon/cmd/internal/cli"
)

func deadLetterCommands() []cli.Command {
	return []cli.Command{
		define(cli.Command{
			Name: "dead-letter list", Help: "List dead letters by instant.", Example: "carillon dead-letter list --prefix=mail/",
		}, listDeadLetters),
		define(cli.Command{
			Name: "dead-letter redrive", Arguments: "[ID...]",
			Help:    "Make dead letters due at once: those of the ids, or those of --key, --prefix or --all.",
			Example: "carillon dead-letter redrive --all --yes",
		}, func() parts { return changeDeadLetters("Redrive", "redriven", http.MethodPost, "redrive") }),
		define(cli.Command{
			Name: "dead-letter delete", Arguments: "[ID...]",
			Help:    "Delete dead letters for good: those of the ids, or those of --key, --prefix or --all.",
			Example: "carillon dead-letter delete --key=digest --yes",
		}, func() parts { return changeDeadLetters("Delete", "deleted", http.MethodDelete) }),
	}
}

var deadLetterColumns = []column{
	{"ID", "id"}, {"KEY", "key"}, {"INSTANT", "timestamp"}, {"FAILED", "failedAt"}, {"ATTEMPT", "attempt"},
	{"ERROR", "error"},
}

func listDeadLetters() parts {
	return selecting(path("dead-letters"), deadLetterColumns, "to list the dead letters of %q, give --key=%[1]s",
		func(f *flag.FlagSet, p *parameters) func(shown) bool {
			var containing string
			p.text(f, "key", "key", "`KEY`: Only those of this job.")
			p.text(f, "prefix", "prefix", "`PREFIX`: Only those of jobs whose key begins with this.")
			f.StringVar(&containing, "error", "", "`TEXT`: Only those whose error contains this.")
			return func(d shown) bool { return strings.Contains(text(d.document["error"]), containing) }
		})
}

// changeDeadLetters makes a command that redrives or deletes.
func changeDeadLetters(verb, done, method string, last ...string) parts {
	var p parameters
	var all, yes bool
	var containing, cursor string
	return parts{
		declare: func(f *flag.FlagSet) {
			p.text(f, "key", "key", "`KEY`: Those of this job.")
			p.text(f, "prefix", "prefix", "`PREFIX`: Those of jobs whose key begins with this.")
			f.BoolVar(&all, "all", false, "Those of all jobs of the tenant.")
			f.StringVar(&containing, "error", "", "`TEXT`: Of these, only those whose error contains this, one by one.")
			f.StringVar(&cursor, "cursor", "",
				"`CURSOR`: Of these, only those behind the place that an interrupted command has printed.")
			f.BoolVar(&yes, "yes", false, "Do not ask.")
		},
		run: func(ctx context.Context, s *session, ids []string) error {
			chosen := len(p.Values)
			if all {
				chosen++
			}
			if chosen+min(len(ids), 1) != 1 {
				return cli.Usagef("give ids, or one of --key, --prefix and --all")
			}
			if (containing != "" || cursor != "") && len(ids) > 0 {
				return cli.Usagef("--error and --cursor need --key, --prefix or --all")
			}
			if cursor != "" {
				p.Set("cursor", cursor)
			}
			if len(ids) == 0 {
				question := verb + " all dead letters that were selected?"
				if err := s.sure(yes, question); err != nil {
					return err
				}
			}
			if len(ids) == 0 && containing == "" {
				if all {
					p.Set("all", "true")
				}
				r := request{method: method, path: path(append([]string{"dead-letters"}, last...)...), query: p.Values}
				return s.settlePages(ctx, r, verb, done)
			}
			if containing != "" {
				looked := 0
				bar := s.progress("Looking through")
				err := s.list(ctx, request{method: http.MethodGet, path: path("dead-letters"), query: p.Values}, 0, nil,
					func(d shown) error {
						if strings.Contains(text(d.document["error"]), containing) {
							ids = append(ids, text(d.document["id"]))
						}
						looked++
						bar.note(looked, 0)
						return nil
					})
				bar.end()
				if err != nil {
					return err
				}
			}
			count := 0
			bar := s.progress(verb)
			defer bar.end()
			for i, id := range ids {
				a, err := s.do(ctx, request{method: method, path: path(append([]string{"dead-letters", id}, last...)...)})
				if err != nil && (!a.repeated || !isStatus(err, http.StatusNotFound)) {
					bar.end()
					return fmt.Errorf("%d are %s; then %s: %w", count, done, id, err)
				}
				count++
				bar.note(i+1, len(ids))
			}
			bar.end()
			return s.one(shown{document: document{done: count}})
		},
	}
}

// settlePages redrives or deletes the dead letters that a request selects, a page at a time. If it fails or is
// interrupted, the error has the place to continue from.
func (s *session) settlePages(ctx context.Context, r request, verb, done string) error {
	const pageSize = 500
	r.query.Set("limit", strconv.Itoa(pageSize))
	bar := s.progress(verb)
	defer bar.end()
	for count := 0; ; {
		a, err := s.do(ctx, r)
		if err != nil && r.query.Get("cursor") != "" {
			bar.end()
			return fmt.Errorf("%d are %s; the same command with --cursor=%s goes on with the rest: %w",
				count, done, r.query.Get("cursor"), err)
		}
		if err != nil {
			return err
		}
		page, err := read[struct {
			Redriven, Deleted int
			NextCursor        string
		}](a.body)
		if err != nil {
			return err
		}
		count += page.Redriven + page.Deleted // it has one of them
		if page.NextCursor == "" {
			bar.end()
			return s.one(shown{document: document{done: count}})
		}
		r.query.Set("cursor", page.NextCursor)
		bar.note(count, 0)
	}
}

func isStatus(err error, status int) bool {
	r, ok := errors.AsType[*refusal](err)
	return ok && r.Status == status
}

func serviceCommands() []cli.Command {
	return []cli.Command{
		simple(cli.Command{
			Name: "status", Help: "Show whether the service is ready and on time. The exit code is 1 if it is not ready.",
			Example: "carillon status",
		}, status),
		define(cli.Command{
			Name:    "backlog",
			Help:    "Show how much is due and pending, by priority, tenant and destination, and the time to drain.",
			Example: "carillon backlog --limit=5",
		}, backlog),
		define(cli.Command{
			Name: "forecast", Help: "Show how much will fire, by the hour, and when it will be done.",
			Example: "carillon forecast --step=6h",
		}, forecast),
	}
}

func status(ctx context.Context, s *session, _ []string) error {
	d := document{"service": s.base}
	a, err := s.do(ctx, request{method: http.MethodGet, path: path("status"), several: true})
	switch {
	case isStatus(err, http.StatusNotFound), isStatus(err, http.StatusForbidden),
		isStatus(err, http.StatusServiceUnavailable):
		// An older service, a key for jobs of a prefix, or an unavailable store: only the public operations are left.
	case err != nil:
		return err
	default:
		if d, err = read[document](a.body); err != nil {
			return err
		}
		s.now = a.at
		d["service"] = s.base
		if lateness, ok := d["lateness"].(map[string]any); ok && s.form == "table" {
			delete(lateness, "hours") // a table of a day is for the page
		}
	}
	s.attempts = 1 // a service that is not ready says so
	a, notReady := s.do(ctx, request{method: http.MethodGet, path: "/readyz", several: true})
	d["state"] = "ready"
	if refused, ok := errors.AsType[*refusal](notReady); ok {
		d["state"], d["reason"] = "down", refused.Detail
	} else if notReady != nil {
		return notReady
	} else if ready, err := read[document](a.body); err == nil && ready["warnings"] != nil {
		d["warnings"] = ready["warnings"]
	}
	if err := s.divided(shown{document: d}, []division{
		{"replicas", []column{
			{"REPLICA", "id"}, {"READY", "ready"}, {"VERSION", "version"}, {"SINCE", "since"}, {"SEEN", "seen"},
		}},
		{"objectives", []column{
			{"OBJECTIVE", "target"}, {"WITHIN", "within"}, {"TENANT", "tenant"}, {"MET", "met"}, {"BURN RATE", "burnRate"},
		}},
		{"destinations", []column{{"DESTINATION", "destination"}, {"STATE", "state"}, {"SINCE", "since"}}},
	}); err != nil {
		return err
	}
	if notReady != nil {
		return &cli.ExitError{Code: cli.ExitFailure}
	}
	return nil
}

func backlog() parts {
	var most int
	var watch bool
	var every time.Duration
	return parts{
		declare: func(f *flag.FlagSet) {
			f.IntVar(&most, "limit", 20, "`N`: The most tenants, and the most destinations, to show.")
			f.BoolVar(&watch, "watch", false, "Show it again and again, until it is interrupted.")
			cli.Duration(f, &every, "every", 2*time.Second, "`DURATION`: With --watch: the time from one to the next.")
		},
		run: func(ctx context.Context, s *session, _ []string) error {
			r := request{
				method: http.MethodGet, path: path("backlog"), query: url.Values{"limit": {strconv.Itoa(most)}}, several: true,
			}
			for {
				a, err := s.do(ctx, r)
				if ctx.Err() != nil && watch {
					return nil
				}
				if err != nil {
					return err
				}
				d, err := readShown(a.body)
				if err != nil {
					return err
				}
				s.now = a.at
				if watch && s.terminal.is {
					fmt.Fprintf(s.w, "\x1b[H\x1b[2J")
				}
				if err := s.backlog(d); err != nil || !watch {
					return err
				}
				select {
				case <-time.After(max(every, time.Second)):
				case <-ctx.Done():
					return nil
				}
			}
		},
	}
}

// backlog prints a backlog: the totals, and a table for each division of them.
func (s *session) backlog(d shown) error {
	return s.divided(d, []division{
		{"priorities", []column{{"PRIORITY", "priority"}, {"DUE", "due"}, {"PENDING", "pending"}}},
		{"tenants", []column{
			{"TENANT", "name"}, {"DUE", "due"}, {"PENDING", "pending"}, {"OLDEST DUE", "oldestDue"}, {"PRIORITY", "priority"},
			{"WEIGHT", "weight"}, {"PAUSED", "paused"},
		}},
		{"destinations", []column{
			{"DESTINATION", "name"}, {"DUE", "due"}, {"PENDING", "pending"}, {"IN FLIGHT", "inFlight"}, {"PARKED", "parked"},
			{"FAILURES", "failures"}, {"DOWN SINCE", "openSince"},
		}},
	})
}

// division is a member of a document that is a table of its own.
type division struct {
	member  string
	columns []column
}

// divided prints a document: first the members that are no lists of documents, then each of its divisions.
func (s *session) divided(d shown, divisions []division) error {
	if s.form != "table" {
		return s.one(d)
	}
	totals := document{}
	for name, v := range d.document {
		if !slices.ContainsFunc(divisions, func(d division) bool { return d.member == name }) {
			totals[name] = v
		}
	}
	if err := s.one(shown{document: totals}); err != nil {
		return err
	}
	for _, one := range divisions {
		s.under(d.document, one.member, one.columns)
	}
	return nil
}

// under prints the documents in a member as a table, after a blank line, if there are any.
func (s *session) under(d document, member string, columns []column) {
	items, _ := d[member].([]any)
	s.kept = nil
	for _, item := range items {
		if m, ok := item.(map[string]any); ok {
			s.kept = append(s.kept, shown{document: m})
		}
	}
	if len(s.kept) > 0 {
		fmt.Fprintln(s.w)
		s.table(columns)
	}
}

func forecast() parts {
	var p parameters
	var file string
	return parts{
		declare: func(f *flag.FlagSet) {
			p.text(f, "from", "from", "`INSTANT`: The beginning. (now)")
			p.text(f, "to", "to", "`INSTANT`: The end. (24 hours later)")
			p.text(f, "step", "step", "`DURATION`: The length of a step. (1h)")
			p.text(f, "top", "top", "`N`: The most tenants and destinations of each step.")
			f.StringVar(&file, "f", "", "`FILE`: What if: the body of POST /v1/forecast, as JSON or YAML.")
		},
		run: func(ctx context.Context, s *session, _ []string) error {
			r := request{method: http.MethodGet, path: path("forecast"), query: p.Values, several: true}
			if file != "" {
				body, err := s.file(file)
				if err != nil {
					return err
				}
				r.method, r.body = http.MethodPost, body
			}
			if s.form != "table" {
				return s.show(ctx, r)
			}
			a, err := s.do(ctx, r)
			if err != nil {
				return err
			}
			d, err := read[document](a.body)
			if err != nil {
				return err
			}
			s.members([][2]string{
				{"total", text(d["total"])}, {"paused", text(d["paused"])}, {"unknown", text(d["unknown"])},
				{"incomplete", text(d["incomplete"])}, {"perSecond", text(d.at("rate.perSecond"))},
				{"source", text(d.at("rate.source"))}, {"asOf", text(d["asOf"])},
			})
			if unmatched, ok := d["unmatched"].([]any); ok {
				for _, name := range unmatched {
					s.members([][2]string{{"unmatched", text(name)}}) // nothing is due for it
				}
			}
			s.under(d, "steps", []column{{"FROM", "from"}, {"COUNT", "count"}, {"LEFT", "left"}, {"DRAINED", "drainedAt"}})
			return nil
		},
	}
}

// set sets members of a document by options: only those that are given.
type set struct{ members map[string]any }

func (s *set) put(name string, v any) error {
	if s.members == nil {
		s.members = make(map[string]any)
	}
	s.members[name] = v
	return nil
}

// number declares an option for a number.
func (s *set) number(f *flag.FlagSet, option, name, usage string) {
	f.Func(option, usage, func(text string) error {
		if _, err := strconv.ParseFloat(text, 64); err != nil {
			return errors.New("must be a number")
		}
		return s.put(name, json.Number(text))
	})
}

// word declares an option for a text.
func (s *set) word(f *flag.FlagSet, option, name, usage string) {
	f.Func(option, usage, func(text string) error { return s.put(name, text) })
}

func tenantCommands() []cli.Command {
	tenants := completing(path("tenants"), "name", true)
	named := func(method string, last ...string) func(context.Context, *session, []string) error {
		return func(ctx context.Context, s *session, arguments []string) error {
			name, err := one(arguments, "one tenant")
			if err != nil {
				return err
			}
			return s.show(ctx, request{method: method, path: path(append([]string{"tenants", name}, last...)...), several: true})
		}
	}
	return []cli.Command{
		listing(
			cli.Command{Name: "tenant list", Help: "List tenants.", Example: "carillon tenant list"},
			request{path: path("tenants"), several: true},
			column{"NAME", "name"}, column{"PRIORITY", "effectivePriority"}, column{"WEIGHT", "settings.weight"},
			column{"MAX IN FLIGHT", "settings.maxInFlight"}, column{"PAUSED", "settings.paused"},
			column{"FIRST SEEN", "firstSeen"},
		),
		simple(cli.Command{
			Name: "tenant get", Arguments: "NAME", Help: "Show a tenant and its settings.", Complete: tenants,
			Example: "carillon tenant get default",
		}, named(http.MethodGet)),
		define(cli.Command{
			Name: "tenant set", Arguments: "NAME", Complete: tenants,
			Help:    "Change settings of a tenant: those that are given, or all of them by a file.",
			Example: "carillon tenant set default --weight=3 --max-in-flight=50",
		}, setTenant),
		simple(cli.Command{
			Name: "tenant reset", Arguments: "NAME", Help: "Give a tenant the default settings back.", Complete: tenants,
			Example: "carillon tenant reset default",
		}, named(http.MethodDelete)),
		define(cli.Command{
			Name: "tenant limits", Arguments: "NAME", Complete: tenants,
			Help:    "Show the limits of a tenant, or replace those that it has of its own by those in a file.",
			Example: "carillon tenant limits default",
		}, func() parts {
			var file string
			return parts{
				declare: func(f *flag.FlagSet) { f.StringVar(&file, "f", "", "`FILE`: The limits, as JSON or YAML.") },
				run: func(ctx context.Context, s *session, arguments []string) error {
					name, err := one(arguments, "one tenant")
					if err != nil {
						return err
					}
					r := request{method: http.MethodGet, path: path("tenants", name, "limits"), several: true}
					if file != "" {
						r.method = http.MethodPut
						if r.body, err = s.file(file); err != nil {
							return err
						}
					}
					return s.show(ctx, r)
				},
			}
		}),
	}
}

func setTenant() parts {
	var file string
	var given set
	return parts{
		declare: func(f *flag.FlagSet) {
			f.StringVar(&file, "f", "", "`FILE`: All settings, as JSON or YAML.")
			given.number(f, "weight", "weight", "`N`: The tenant's share beside others.")
			given.number(f, "max-in-flight", "maxInFlight", "`N`: The most callbacks at once on each replica.")
			given.word(f, "priority", "priority", "`PRIORITY`: high, normal or low.")
			f.BoolFunc("paused", "Nothing of the tenant fires; --paused=false ends that.", func(text string) error {
				paused, err := strconv.ParseBool(text)
				if err != nil {
					return errors.New("must be true or false")
				}
				return given.put("paused", paused)
			})
		},
		run: func(ctx context.Context, s *session, arguments []string) error {
			name, err := one(arguments, "one tenant")
			if err != nil {
				return err
			}
			r := request{method: http.MethodPut, path: path("tenants", name), several: true}
			switch {
			case (file == "") == (given.members == nil):
				return cli.Usagef("give settings as options, such as --weight=3, or all of them by -f")
			case file != "":
				r.body, err = s.file(file)
			default:
				r.body, err = s.merged(ctx, r.path, given.members)
			}
			if err != nil {
				return err
			}
			return s.show(ctx, r)
		},
	}
}

// merged returns the present settings of a tenant with some changed.
func (s *session) merged(ctx context.Context, path string, changes map[string]any) (json.RawMessage, error) {
	settings := make(map[string]any)
	a, err := s.do(ctx, request{method: http.MethodGet, path: path, several: true})
	switch {
	case isStatus(err, http.StatusNotFound):
	case err != nil:
		return nil, err
	default:
		d, err := read[document](a.body)
		if err != nil {
			return nil, err
		}
		if present, ok := d["settings"].(map[string]any); ok {
			settings = present
		}
	}
	for name, v := range changes {
		settings[name] = v
	}
	return compact(settings), nil
}
