package remote

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/carillon-scheduler/carillon/cmd/internal/cli"
	"github.com/carillon-scheduler/carillon/cmd/internal/jobfiles"
	"github.com/carillon-scheduler/carillon/openapi"
)

func fileCommands() []cli.Command {
	return []cli.Command{
		define(cli.Command{
			Name: "apply",
			Help: "Make the jobs of the service those in files: create and change what differs, and with --prune delete what " +
				"is in no file. It shows what it would do and asks. A job that somebody else changes meanwhile is left " +
				"alone, and the exit code is 4.",
			Example: "carillon apply -f jobs --prune=mail/ --yes",
		}, func() parts { return applyOrDiff(true) }),
		define(cli.Command{
			Name: "diff",
			Help: "Show what apply would do, field by field, and do nothing. The exit code is 0 if there is nothing to do, " +
				"and 3 otherwise.",
			Example: "carillon diff -f jobs",
		}, func() parts { return applyOrDiff(false) }),
	}
}

// action is one step of a plan.
type action struct {
	// verb is create, change or delete.
	verb string
	key  string
	// version is that of the job that is changed or deleted.
	version string
	changes []jobfiles.Change
	job     *jobfiles.Job
}

func applyOrDiff(apply bool) parts {
	var file, prune, dry string
	var yes bool
	return parts{
		declare: func(f *flag.FlagSet) {
			f.StringVar(&file, "f", "", "`NAME`: A file, or a folder with files of YAML and JSON.")
			f.StringVar(&prune, "prune", "", "`PREFIX`: Delete the jobs whose key begins with this and which are in no file.")
			if apply {
				f.BoolVar(&yes, "yes", false, "Do not ask.")
			}
			cli.Choice(f, &dry, "dry-run", []string{"none", "server"},
				"`HOW`: server has the service check each job that would be created or changed, and changes nothing.")
		},
		run: func(ctx context.Context, s *session, _ []string) error {
			if file == "" {
				return cli.Usagef("-f is missing: name a file, or a folder with files of YAML and JSON")
			}
			jobs, err := jobfiles.Read(file, time.Now())
			if err != nil {
				return cli.Usage(err)
			}
			plan, err := s.plan(ctx, jobs, prune)
			if err != nil {
				return err
			}
			if err := s.showPlan(plan, len(jobs)); err != nil {
				return err
			}
			if dry == "server" {
				if err := s.check(ctx, plan); err != nil {
					return err
				}
			}
			switch {
			case len(plan) == 0:
				return nil
			case !apply:
				return &cli.ExitError{Code: exitDifferent}
			case dry != "none":
				return nil
			}
			if err := s.sure(yes, "Do this?"); err != nil {
				return err
			}
			return s.carryOut(ctx, plan)
		},
	}
}

// plan compares the jobs in the files with those of the service.
func (s *session) plan(ctx context.Context, jobs []jobfiles.Job, prune string) (plan []action, err error) {
	found := make([]*action, len(jobs))
	bar := s.progress("Comparing")
	err = each(ctx, len(jobs), bar, func(ctx context.Context, i int) (err error) {
		found[i], err = s.compare(ctx, &jobs[i])
		return err
	})
	bar.end()
	if err != nil {
		return nil, err
	}
	for _, a := range found {
		if a != nil {
			plan = append(plan, *a)
		}
	}
	if prune == "" {
		return plan, nil
	}
	keys := make(map[string]bool)
	for _, j := range jobs {
		keys[j.Key] = true
	}
	r := request{method: http.MethodGet, path: path("jobs"), query: url.Values{"prefix": {prune}}}
	err = s.list(ctx, r, 0, nil, func(d shown) error {
		if key, _ := d.document["key"].(string); !keys[key] {
			plan = append(plan, action{verb: "delete", key: key, version: text(d.document["version"])})
		}
		return nil
	})
	return plan, err
}

// compare returns the necessary action for a job; nil for none.
func (s *session) compare(ctx context.Context, j *jobfiles.Job) (*action, error) {
	d, raw, err := s.job(ctx, j.Key)
	if isStatus(err, http.StatusNotFound) {
		if j.Ended {
			return nil, nil
		}
		return &action{verb: "create", key: j.Key, changes: j.Changes(map[string]any{}), job: j}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", j.Key, err)
	}
	present, err := jobfiles.Normal(raw, openapi.JobFields())
	if err != nil {
		return nil, fmt.Errorf("%s: the service shows a job that this version of carillon can't read: %w", j.Key, err)
	}
	changes := j.Changes(present)
	if len(changes) == 0 {
		return nil, nil
	}
	return &action{verb: "change", key: j.Key, version: text(d["version"]), changes: changes, job: j}, nil
}

// showPlan prints a plan.
func (s *session) showPlan(plan []action, jobs int) error {
	if s.form != "table" {
		for _, a := range plan {
			d := document{"action": a.verb, "key": a.key}
			var changes []any
			for _, c := range a.changes {
				change := document{"field": c.Field}
				if c.From != "" {
					change["from"] = json.RawMessage(c.From)
				}
				if c.To != "" {
					change["to"] = json.RawMessage(c.To)
				}
				changes = append(changes, change)
			}
			if a.verb != "delete" {
				d["changes"] = changes
			}
			s.item(shown{document: d})
		}
		return s.end(nil)
	}
	counts := make(map[string]int)
	sign := map[string]string{"create": "+", "change": "~", "delete": "-"}
	colour := map[string]string{"create": "32", "change": "33", "delete": "31"}
	for _, a := range plan {
		counts[a.verb]++
		fmt.Fprintln(s.w, s.tint(colour[a.verb], fmt.Sprintf("%s %s %s", sign[a.verb], a.verb, text(a.key))))
		for _, c := range a.changes {
			line := fmt.Sprintf("    %s: %s", text(c.Field), text(c.To))
			if a.verb == "change" {
				line = fmt.Sprintf("    %s: %s -> %s", text(c.Field), text(c.From), text(c.To))
			}
			if s.terminal.is {
				line = cut(line, s.terminal.width)
			}
			fmt.Fprintln(s.w, line)
		}
	}
	_, err := fmt.Fprintf(s.w, "%d in files: %d to create, %d to change, %d to delete, %d as they are\n", jobs,
		counts["create"], counts["change"], counts["delete"], jobs-counts["create"]-counts["change"])
	return err
}

// check has the service check the jobs of a plan.
func (s *session) check(ctx context.Context, plan []action) error {
	bar := s.progress("Checking")
	defer bar.end()
	return each(ctx, len(plan), bar, func(ctx context.Context, i int) error {
		if plan[i].job == nil {
			return nil
		}
		r := request{
			method: http.MethodPost, path: path("preview"), query: url.Values{"count": {"1"}}, body: plan[i].job.Body,
		}
		if _, err := s.do(ctx, r); err != nil {
			return fmt.Errorf("%s (%s): %w", plan[i].key, plan[i].job.At, err)
		}
		return nil
	})
}

// errChanged is the error of a job that another client has changed since the plan was made.
var errChanged = errors.New("somebody has changed it meanwhile; it was left as it is")

// carryOut carries out a plan: first creations and changes, then deletions.
func (s *session) carryOut(ctx context.Context, plan []action) error {
	first := slices.IndexFunc(plan, func(a action) bool { return a.verb == "delete" })
	if first < 0 {
		first = len(plan)
	}
	bar := s.progress("Applying")
	done, errs := s.put(ctx, plan[:first], bar)
	bar.end()
	if len(errs) == 0 {
		var deleted atomic.Int32
		bar = s.progress("Deleting")
		err := each(ctx, len(plan)-first, bar, func(ctx context.Context, i int) error {
			err := s.prune(ctx, plan[first+i])
			if err == nil {
				deleted.Add(1)
			}
			return err
		})
		bar.end()
		done += int(deleted.Load())
		if err != nil {
			errs = append(errs, err)
		}
	}
	fmt.Fprintf(s.in.Stderr, "%d of %d are done\n", done, len(plan))
	if len(errs) == 0 {
		return nil
	}
	err := error(&several{errs})
	if errors.Is(err, errChanged) {
		return &cli.ExitError{Code: exitConflict, Err: err}
	}
	return err
}

// put creates and replaces jobs in batches, each job unless it is another by now. Those for which the store is
// unavailable are sent again: their conditions make that harmless. It returns how many are done, and the errors of the
// others.
func (s *session) put(ctx context.Context, plan []action, bar *progress) (done int, errs []error) {
	left := plan
	for n := 1; ; n++ {
		var again []action
		var last error
		for batch := range batches(left) {
			results, err := s.putBatch(ctx, batch, n > 1)
			if err != nil {
				return done, append(errs, err)
			}
			for i, err := range results {
				switch {
				case err == nil:
					done++
				case isStatus(err, http.StatusServiceUnavailable):
					again, last = append(again, batch[i]), err
				default:
					errs = append(errs, fmt.Errorf("%s: %w", batch[i].key, err))
				}
			}
			bar.note(done+len(errs), len(plan))
		}
		if len(again) == 0 {
			return done, errs
		}
		if n >= s.attempts || !s.wait(ctx, n, last) {
			return done, append(errs, fmt.Errorf("%s and %d more: %w", again[0].key, len(again)-1, &lost{err: last}))
		}
		left = again
	}
}

// Bounds of a batch. It is small enough for the progress to move.
const (
	batchItems = 250
	batchBytes = 1 << 20
)

// batches divides the creations and changes of a plan.
func batches(plan []action) iter.Seq[[]action] {
	return func(yield func([]action) bool) {
		for len(plan) > 0 {
			n, size := 0, 0
			for n < len(plan) && n < batchItems && (n == 0 || size+len(plan[n].job.Body) <= batchBytes) {
				size += len(plan[n].job.Body)
				n++
			}
			if !yield(plan[:n]) {
				return
			}
			plan = plan[n:]
		}
	}
}

// putBatch creates and replaces the jobs of one batch, and returns the outcome of each. Again is true if they were sent
// before. The error is that of the whole batch.
func (s *session) putBatch(ctx context.Context, batch []action, again bool) ([]error, error) {
	var body bytes.Buffer
	for i, a := range batch {
		condition := document{"ifNoneMatch": "*"}
		if a.verb == "change" {
			condition = document{"ifMatch": a.version}
		}
		body.WriteString(map[bool]string{true: "[", false: ","}[i == 0])
		body.Write(bytes.TrimSuffix(compact(condition), []byte("}")))
		body.WriteByte(',')
		// A job has members, at least its key. They keep their bytes.
		body.Write(a.job.Body[bytes.IndexByte(a.job.Body, '{')+1:])
	}
	body.WriteByte(']')
	answer, err := s.do(ctx, request{method: http.MethodPost, path: path("jobs", "batch"), body: body.Bytes()})
	if err != nil {
		return nil, err
	}
	results, err := read[[]struct {
		refusal
		Index int
	}](answer.body)
	if err != nil {
		return nil, err
	}
	errs := slices.Repeat([]error{&refusal{Status: http.StatusServiceUnavailable, Detail: "it was not read"}}, len(batch))
	for _, r := range results {
		if r.Index < 0 || r.Index >= len(batch) {
			continue
		}
		switch r.Status {
		case http.StatusOK, http.StatusCreated:
			errs[r.Index] = nil
		case http.StatusPreconditionFailed, http.StatusConflict:
			errs[r.Index] = errChanged
			if again || answer.repeated { // an attempt whose answer was lost may have done it
				if left, err := s.compare(ctx, batch[r.Index].job); err == nil && left == nil {
					errs[r.Index] = nil
				}
			}
		default:
			errs[r.Index] = &r.refusal
		}
	}
	return errs, nil
}

// prune deletes a job, unless it is another by now.
func (s *session) prune(ctx context.Context, a action) error {
	r := request{
		method: http.MethodDelete, path: path("jobs", a.key), header: map[string]string{"If-Match": quote(a.version)},
	}
	_, err := s.do(ctx, r)
	switch {
	case isStatus(err, http.StatusNotFound):
		return nil
	case isStatus(err, http.StatusPreconditionFailed), isStatus(err, http.StatusConflict):
		err = errChanged
	}
	if err != nil {
		return fmt.Errorf("%s: %w", a.key, err)
	}
	return nil
}

// several are the errors of several requests.
type several struct{ errs []error }

// Error implements error: the first errors, and how many others there are.
func (s *several) Error() string {
	const most = 20
	var lines []string
	for _, err := range s.errs[:min(len(s.errs), most)] {
		lines = append(lines, err.Error())
	}
	if more := len(s.errs) - most; more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(lines, "\n")
}

// Unwrap returns the errors.
func (s *several) Unwrap() []error { return s.errs }

// each calls f for 0 to n-1, several at a time, and returns all errors, in their order. Once the service can't be
// reached, it calls no more.
func each(ctx context.Context, n int, bar *progress, f func(ctx context.Context, i int) error) error {
	var mu sync.Mutex
	var running sync.WaitGroup
	errs := make([]error, n)
	next, done, stopped := 0, 0, false
	for range min(parallel, n) {
		running.Go(func() {
			for {
				mu.Lock()
				i := next
				next++
				over := i >= n || stopped || ctx.Err() != nil
				mu.Unlock()
				if over {
					return
				}
				err := f(ctx, i)
				mu.Lock()
				errs[i] = err
				done++
				_, isLost := errors.AsType[*lost](err)
				_, isAway := errors.AsType[*away](err)
				stopped = stopped || isLost || isAway
				bar.note(done, n)
				mu.Unlock()
			}
		})
	}
	running.Wait()
	all := slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	if len(all) == 0 {
		return ctx.Err()
	}
	return &several{all}
}
