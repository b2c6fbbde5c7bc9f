package remote

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"github.com/carillon-scheduler/carillon/cmd/internal/cli"
	"github.com/carillon-scheduler/carillon/openapi"
)

// parameters are options that become parameters of a request.
type parameters struct {
	url.Values
	choices map[string]*string
}

// text declares an option whose value is the parameter of the given name.
func (p *parameters) text(f *flag.FlagSet, option, name, usage string) {
	if p.Values == nil {
		p.Values = url.Values{}
	}
	f.Func(option, usage, func(s string) error {
		p.Set(name, s)
		return nil
	})
}

// choice declares an option for one of several texts, which is the parameter of the same name, or for any of them.
func (p *parameters) choice(f *flag.FlagSet, name string, of []string, usage string) {
	if p.choices == nil {
		p.choices = make(map[string]*string)
	}
	chosen := new(string)
	cli.Choice(f, chosen, name, slices.Concat([]string{"any"}, of), usage)
	p.choices[name] = chosen
}

// query returns the parameters that are given.
func (p *parameters) query() url.Values {
	if p.Values == nil {
		p.Values = url.Values{}
	}
	for name, chosen := range p.choices {
		if *chosen != "any" {
			p.Set(name, *chosen)
		}
	}
	return p.Values
}

// selecting makes the parts of a command that lists the items at a path which its options select, as many as --limit
// says. Declare declares these options, and returns a function that chooses among the items, or nil for all. Advice is
// for who gives an argument instead of an option.
func selecting(
	at string, columns []column, advice string, declare func(f *flag.FlagSet, p *parameters) func(shown) bool,
) parts {
	var p parameters
	var most int
	var chosen func(shown) bool
	return parts{
		declare: func(f *flag.FlagSet) {
			chosen = declare(f, &p)
			limit(f, &most)
		},
		run: func(ctx context.Context, s *session, arguments []string) error {
			if len(arguments) > 0 {
				return cli.Usagef(advice, arguments[0])
			}
			r := request{method: http.MethodGet, path: at, query: p.query()}
			return s.list(ctx, r, most, columns, func(d shown) error {
				if chosen == nil || chosen(d) {
					s.item(d)
				}
				return nil
			})
		},
	}
}

// limit declares the option for the number of items to list.
func limit(f *flag.FlagSet, p *int) {
	f.IntVar(p, "limit", 100, "`N`: The most items to list; 0 for all.")
}

func jobCommands() []cli.Command {
	return []cli.Command{
		define(cli.Command{
			Name: "job put", Arguments: "KEY", Complete: jobKeys,
			Help:    "Create a job, or replace it. The file has the job as PUT /v1/jobs/KEY takes it, as JSON or YAML.",
			Example: "carillon job put digest -f digest.yaml",
		}, putJob),
		define(cli.Command{
			Name: "job get", Arguments: "KEY", Complete: jobKeys,
			Help:    "Show a job with its next occurrences and its outcomes, or its definition alone.",
			Example: "carillon job get digest --definition -o yaml",
		}, getJob),
		define(cli.Command{
			Name: "job list", Help: "List jobs by their keys.", Example: "carillon job list --prefix=mail/ --state=paused",
		}, listJobs),
		define(cli.Command{
			Name: "job cancel", Arguments: "KEY", Complete: jobKeys,
			Help: "Cancel a job, or all jobs of a prefix. The answer tells how many occurrences will never fire. With " +
				"--if-version nothing is cancelled that somebody has changed meanwhile; the exit code is 4 then.",
			Example: "carillon job cancel digest",
		}, cancelJobs),
		control("pause", "Stop a job from firing by its schedule.", false),
		control("resume", "Undo a pause.", false),
		control("trigger", "Fire a job once more, now.", true),
		define(cli.Command{
			Name: "job check-in", Arguments: "KEY", Complete: jobKeys,
			Help:    "Tell that the work of an instant is done, for a job that expects it (expectBy).",
			Example: "carillon job check-in digest",
		}, checkIn),
		define(cli.Command{
			Name: "job patch", Arguments: "KEY", Complete: jobKeys,
			Help: "Change a part of a job by a JSON merge patch. The change is made only if nobody else changes the job at " +
				"the same time; the exit code is 4 otherwise.",
			Example: `carillon job patch digest -p '{"deadline": "10m"}'`,
		}, patchJob),
		define(cli.Command{
			Name: "job preview", Arguments: "[KEY]", Complete: jobKeys,
			Help:    "Show the next instants of a job, or those that the job in a file would have. Nothing is stored.",
			Example: "carillon job preview -f digest.yaml --count=3",
		}, previewJob),
		define(cli.Command{
			Name: "job history", Arguments: "[KEY]", Complete: jobKeys,
			Help: "List the attempts at a job's occurrences and the changes of the job, the newest first; of all jobs " +
				"without a key.",
			Example: "carillon job history digest --outcome=failed",
		}, history),
		define(cli.Command{
			Name: "job explain", Arguments: "KEY", Complete: jobKeys,
			Help:    "Tell why a job fired, or did not fire, or has not fired yet, at an instant.",
			Example: "carillon job explain digest --at=last",
		}, explain),
	}
}

func putJob() parts {
	var file, version string
	var create bool
	return parts{
		declare: func(f *flag.FlagSet) {
			f.StringVar(&file, "f", "", "`FILE`: The job, as JSON or YAML; - is the standard input.")
			f.BoolVar(&create, "create", false, "Only create the job: fail if there is one of the key.")
			f.StringVar(&version, "if-version", "", "`VERSION`: Only replace the job if this is its version.")
		},
		run: func(ctx context.Context, s *session, arguments []string) error {
			key, err := one(arguments, "the job's key")
			if err != nil {
				return err
			}
			body, err := s.file(file)
			if err != nil {
				return err
			}
			r := request{method: http.MethodPut, path: path("jobs", key), body: body, header: map[string]string{}}
			switch {
			case create && version != "":
				return cli.Usagef("--create and --if-version are both given; give one of them")
			case create:
				r.header["If-None-Match"] = "*"
			case version != "":
				r.header["If-Match"] = quote(version)
			default:
				r.once = !repeatable(body)
			}
			return s.show(ctx, r)
		},
	}
}

func getJob() parts {
	var definition bool
	return parts{
		declare: func(f *flag.FlagSet) {
			f.BoolVar(&definition, "definition", false, "Show only what was submitted, as put and apply take it.")
		},
		run: func(ctx context.Context, s *session, arguments []string) error {
			key, err := one(arguments, "one job by its key")
			if err != nil {
				return err
			}
			if !definition {
				return s.showJob(ctx, key)
			}
			d, raw, err := s.job(ctx, key)
			if err != nil {
				return err
			}
			for name := range d {
				if !slices.Contains(openapi.JobFields(), name) {
					delete(d, name)
				}
			}
			// The members keep their bytes, such as a payload.
			var members map[string]json.RawMessage
			if err := json.Unmarshal(raw, &members); err != nil {
				return err
			}
			for name := range members {
				if _, ok := d[name]; !ok {
					delete(members, name)
				}
			}
			return s.one(shown{d, compact(members)})
		},
	}
}

// showJob prints a job; on a terminal with a table of its first occurrences.
func (s *session) showJob(ctx context.Context, key string) error {
	r := request{method: http.MethodGet, path: path("jobs", key)}
	if !s.terminal.is || s.form != "table" {
		return s.show(ctx, r)
	}
	const few = 10
	r.query = url.Values{"limit": {strconv.Itoa(few)}}
	a, err := s.do(ctx, r)
	if err != nil {
		return err
	}
	d, err := readShown(a.body)
	if err != nil {
		return err
	}
	s.now = a.at
	delete(d.document, "nextCursor") // pending has their number
	return s.divided(d, []division{{"occurrences", []column{
		{"INSTANT", "timestamp"}, {"STATE", "state"}, {"ATTEMPT", "attempt"}, {"DUE", "dueAt"}, {"STEP", "step"},
		{"SUBSCRIBER", "subscriber"}, {"ERROR", "lastError"},
	}}})
}

// quote makes an entity tag of a version.
func quote(version string) string { return `"` + version + `"` }

// repeatable reports whether submitting a job twice has the effect of submitting it once. A job that can't be read is
// refused in any case.
func repeatable(body []byte) bool {
	var j struct{ Delay, Steps, StartAt, Past json.RawMessage }
	_ = json.Unmarshal(body, &j)
	given := func(m json.RawMessage) bool { return len(m) > 0 && string(m) != "null" }
	return !given(j.Delay) && (!given(j.Steps) || given(j.StartAt)) && string(j.Past) != `"fire"`
}

var jobColumns = []column{
	{"KEY", "key"}, {"STATE", "state"}, {"NEXT", "nextInstant"}, {"CALLBACK", "callbackType"}, {"UPDATED", "updatedAt"},
}

func listJobs() parts {
	return selecting(path("jobs"), jobColumns, "to list the jobs whose keys begin with %q, give --prefix=%[1]s",
		func(f *flag.FlagSet, p *parameters) func(shown) bool {
			p.text(f, "prefix", "prefix", "`PREFIX`: Only jobs whose key begins with this.")
			p.choice(f, "state", []string{"scheduled", "paused", "finished"}, "`STATE`: Only jobs in this state.")
			p.choice(f, "kind", []string{"instants", "crontab", "sequence"},
				"`KIND`: Only jobs with a schedule of this kind; a delay is of instants.")
			return nil
		})
}

func cancelJobs() parts {
	var prefix, version, cursor string
	var yes bool
	return parts{
		declare: func(f *flag.FlagSet) {
			f.StringVar(&version, "if-version", "", "`VERSION`: Only cancel the job if this is its version.")
			f.StringVar(&prefix, "prefix", "", "`PREFIX`: Cancel all jobs whose key begins with this.")
			f.StringVar(&cursor, "cursor", "",
				"`CURSOR`: With --prefix: only jobs behind the place that an interrupted command has printed.")
			f.BoolVar(&yes, "yes", false, "Do not ask before cancelling by prefix.")
		},
		run: func(ctx context.Context, s *session, arguments []string) error {
			if prefix != "" {
				if len(arguments) > 0 || version != "" {
					return cli.Usagef("name one job, or give --prefix alone")
				}
				if err := s.sure(yes, "Cancel all jobs whose keys begin with "+prefix+"?"); err != nil {
					return err
				}
				return s.cancelPages(ctx, prefix, cursor)
			}
			if cursor != "" {
				return cli.Usagef("--cursor needs --prefix")
			}
			key, err := one(arguments, "one job by its key, or give --prefix")
			if err != nil {
				return err
			}
			r := request{method: http.MethodDelete, path: path("jobs", key)}
			if version != "" {
				r.header = map[string]string{"If-Match": quote(version)}
			}
			return s.show(ctx, r)
		},
	}
}

// cancelPages cancels the jobs of a prefix, a page at a time. If it fails or is interrupted, the error has the place to
// continue from.
func (s *session) cancelPages(ctx context.Context, prefix, cursor string) error {
	const pageSize = "500"
	r := request{method: http.MethodDelete, path: path("jobs"), query: url.Values{"prefix": {prefix}, "limit": {pageSize}}}
	bar := s.progress("Cancelling")
	defer bar.end()
	for jobs, occurrences, inFlight := 0, 0, 0; ; {
		if cursor != "" {
			r.query.Set("cursor", cursor)
		}
		a, err := s.do(ctx, r)
		if err != nil && jobs > 0 {
			bar.end()
			return fmt.Errorf("%d jobs are cancelled; the same command with --cursor=%s goes on with the rest: %w",
				jobs, cursor, err)
		}
		if err != nil {
			return err
		}
		page, err := read[struct {
			Jobs, Cancelled, InFlight int
			NextCursor                string
		}](a.body)
		if err != nil {
			return err
		}
		jobs, occurrences, inFlight = jobs+page.Jobs, occurrences+page.Cancelled, inFlight+page.InFlight
		if cursor = page.NextCursor; cursor == "" {
			bar.end()
			return s.one(shown{document: document{"jobs": jobs, "cancelled": occurrences, "inFlight": inFlight}})
		}
		bar.note(jobs, 0)
	}
}

// control makes a command that posts to a job.
func control(verb, help string, once bool) cli.Command {
	c := cli.Command{
		Name: "job " + verb, Arguments: "KEY", Help: help, Complete: jobKeys, Example: "carillon job " + verb + " digest",
	}
	return simple(c, func(ctx context.Context, s *session, arguments []string) error {
		key, err := one(arguments, "one job by its key")
		if err != nil {
			return err
		}
		return s.show(ctx, request{method: http.MethodPost, path: path("jobs", key, verb), once: once})
	})
}

func checkIn() parts {
	var at string
	return parts{
		declare: func(f *flag.FlagSet) {
			f.StringVar(&at, "at", "", "`INSTANT`: The instant (RFC 3339). (the latest one that has fired)")
		},
		run: func(ctx context.Context, s *session, arguments []string) error {
			key, err := one(arguments, "one job by its key")
			if err != nil {
				return err
			}
			r := request{method: http.MethodPost, path: path("jobs", key, "check-in")}
			if at != "" {
				r.body = compact(document{"at": at})
			}
			return s.show(ctx, r)
		},
	}
}

func patchJob() parts {
	var file, patch, version string
	return parts{
		declare: func(f *flag.FlagSet) {
			f.StringVar(&file, "f", "", "`FILE`: The merge patch, as JSON or YAML; - is the standard input.")
			f.StringVar(&patch, "p", "", "`JSON`: The merge patch.")
			f.StringVar(&version, "if-version", "", "`VERSION`: Only change the job if this is its version. (the present one)")
		},
		run: func(ctx context.Context, s *session, arguments []string) error {
			key, err := one(arguments, "one job by its key")
			if err != nil {
				return err
			}
			body := json.RawMessage(patch)
			if patch == "" {
				if body, err = s.file(file); err != nil {
					return err
				}
			}
			if version == "" {
				d, _, err := s.job(ctx, key)
				if err != nil {
					return err
				}
				version = text(d["version"])
			}
			return s.show(ctx, request{
				method: http.MethodPatch, path: path("jobs", key), body: body,
				header: map[string]string{"Content-Type": "application/merge-patch+json", "If-Match": quote(version)},
			})
		},
	}
}

// job reads a job, with one of its occurrences at most.
func (s *session) job(ctx context.Context, key string) (document, json.RawMessage, error) {
	a, err := s.do(ctx, request{method: http.MethodGet, path: path("jobs", key), query: url.Values{"limit": {"1"}}})
	if err != nil {
		return nil, nil, err
	}
	d, err := read[document](a.body)
	return d, a.body, err
}

var previewColumns = []column{
	{"INSTANT", "timestamp"}, {"LOCAL", "local"}, {"FIRES", "firesAt"}, {"STEP", "step"}, {"EFFECT", "effect"},
	{"NOTE", "note"},
}

func previewJob() parts {
	var file string
	var count int
	return parts{
		declare: func(f *flag.FlagSet) {
			f.StringVar(&file, "f", "", "`FILE`: The job, as JSON or YAML; - is the standard input.")
			f.IntVar(&count, "count", 10, "`N`: Number of instants to show.")
		},
		run: func(ctx context.Context, s *session, arguments []string) error {
			r := request{method: http.MethodGet, query: url.Values{"count": {strconv.Itoa(count)}}}
			switch {
			case file != "" && len(arguments) > 0:
				return cli.Usagef("name one job, or give -f; not both")
			case file != "":
				body, err := s.file(file)
				if err != nil {
					return err
				}
				r.method, r.path, r.body = http.MethodPost, path("preview"), body
			default:
				key, err := one(arguments, "one job by its key, or give -f")
				if err != nil {
					return err
				}
				r.path = path("jobs", key, "preview")
			}
			if s.form != "table" && s.form != "ndjson" {
				return s.show(ctx, r)
			}
			r.unpaged = true
			return s.list(ctx, r, 0, previewColumns, nil)
		},
	}
}

var historyColumns = []column{
	{"AT", "at"}, {"KEY", "key"}, {"WHAT", "what"}, {"INSTANT", "timestamp"}, {"ATTEMPT", "attempt"},
	{"DESTINATION", "destination"}, {"RESULT", "result"}, {"BY", "by"},
}

func history() parts {
	var p parameters
	var most int
	return parts{
		declare: func(f *flag.FlagSet) {
			p.choice(f, "outcome", []string{"failed", "delivered", "retried", "released", "buried", "missed"},
				"`OUTCOME`: Only attempts with this outcome; failed is all but delivered.")
			p.text(f, "since", "since", "`INSTANT`: Only entries from this instant or later.")
			p.text(f, "until", "until", "`INSTANT`: Only entries from before this instant.")
			p.text(f, "prefix", "prefix", "`PREFIX`: Without a key: only jobs whose key begins with this.")
			p.text(f, "destination", "destination", "`NAME`: Without a key: only attempts at this destination.")
			limit(f, &most)
		},
		run: func(ctx context.Context, s *session, arguments []string) error {
			r := request{method: http.MethodGet, path: path("history"), query: p.query()}
			columns := historyColumns
			if len(arguments) > 0 {
				key, err := one(arguments, "one job by its key, or none")
				if err != nil {
					return err
				}
				r.path = path("jobs", key, "history")
				if s.terminal.is { // who reads it has named the key
					columns = slices.DeleteFunc(slices.Clone(columns), func(c column) bool { return c.path == "key" })
				}
			}
			each := func(d shown) error {
				d.document["what"] = either(d.document, "outcome", "change")
				d.document["result"] = either(d.document, "status", "error")
				s.item(d)
				return nil
			}
			return s.list(ctx, r, most, columns, each)
		},
	}
}

// either returns the first of two members that is there.
func either(d document, first, second string) any {
	if v := d[first]; v != nil {
		return v
	}
	return d[second]
}

func explain() parts {
	var at string
	return parts{
		declare: func(f *flag.FlagSet) {
			f.StringVar(&at, "at", "next", "`INSTANT`: The instant (RFC 3339), or next, or last.")
		},
		run: func(ctx context.Context, s *session, arguments []string) error {
			key, err := one(arguments, "one job by its key")
			if err != nil {
				return err
			}
			r := request{method: http.MethodGet, path: path("jobs", key, "explain"), query: url.Values{"at": {at}}}
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
			facts, _ := d["facts"].([]any)
			for _, fact := range facts {
				if f, ok := fact.(map[string]any); ok {
					f["at"] = either(f, "at", "since")
					s.item(shown{document: f})
				}
			}
			s.members([][2]string{{"key", text(d["key"])}, {"at", text(d["at"])}, {"summary", text(d["summary"])}})
			if s.terminal.is {
				fmt.Fprintln(s.w)
			}
			s.table([]column{{"FACT", "code"}, {"AT", "at"}, {"TEXT", "text"}})
			return nil
		},
	}
}
