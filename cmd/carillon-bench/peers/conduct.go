package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/robfig/cron/v3"
)

// The crontab whose instants are compared in the nights of clock changes.
const (
	nightly     = "30 2 * * *"
	nightlyZone = "Europe/Paris"
)

// nights begin at noon, and end two days later.
var nights = []struct {
	name  string
	start time.Time
}{
	{"29 March 2026: 02:30 does not exist", time.Date(2026, 3, 28, 12, 0, 0, 0, time.UTC)},
	{"25 October 2026: 02:30 comes twice", time.Date(2026, 10, 24, 12, 0, 0, 0, time.UTC)},
}

// conduct is a subject's behaviour in cases that throughput does not show.
type conduct struct {
	subject string
	// Of the jobs of a killed worker: how many never completed within the limit, how many began more than once, and the
	// time from the kill to the last completion.
	count, lost, twice int
	done               time.Duration
	// The answers to the cancellation of a waiting job and of a running one, and whether the waiting one ran all the
	// same.
	waiting, running string
	ranWaiting       bool
	// The instants of a crontab in the nights of clock changes.
	nights []string
}

// subject is a scheduler whose worker is a process of its own.
type subject interface {
	prepare(ctx context.Context, force bool) error
	// insert hands over the work, while a worker runs.
	insert(ctx context.Context, w *work) error
	// worker returns a process that works, and posts each payload to a receiver.
	worker(receiver string) *exec.Cmd
	// cancel cancels the i-th job of the work, and returns the answer.
	cancel(ctx context.Context, w *work, i int) (string, error)
	// next returns the instants of the crontab from a time on, up to another.
	next(ctx context.Context, from, to time.Time) ([]time.Time, error)
	remove(ctx context.Context) error
}

// observeAll observes all subjects side by side, since they mostly wait, and returns the conduct of each.
func observeAll(ctx context.Context, o *options, progress io.Writer) ([]conduct, error) {
	var subjects []string
	for _, name := range o.subjects {
		if o.service != "" || !strings.HasPrefix(name, "carillon") {
			subjects = append(subjects, name)
		}
	}
	all, failed := make([]conduct, len(subjects)), make([]error, len(subjects))
	var group sync.WaitGroup
	for i, name := range subjects {
		group.Go(func() {
			fmt.Fprintf(progress, "conduct: %s\n", name)
			var err error
			if all[i], err = observe(ctx, o, name); err != nil {
				failed[i] = fmt.Errorf("conduct, %s: %w", name, err)
			}
			fmt.Fprintf(progress, "conduct: %s, done\n", name)
		})
	}
	group.Wait()
	return all, errors.Join(failed...)
}

// newSubject returns a subject with its default settings.
func newSubject(ctx context.Context, o *options, name string) (subject, error) {
	if store, is := strings.CutPrefix(name, "carillon-"); is {
		return newCarillon(ctx, o, store)
	}
	p, err := newPeer(ctx, o, name, byDefault)
	if err != nil {
		return nil, err
	}
	return &peerSubject{peer: p, name: name, options: o}, nil
}

// observe runs the cases with a subject, and returns its conduct.
func observe(ctx context.Context, o *options, name string) (c conduct, err error) {
	c = conduct{subject: name, count: o.killed}
	s, err := newSubject(ctx, o, name)
	if err != nil {
		return c, err
	}
	if err := s.prepare(ctx, o.force); err != nil {
		return c, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		err = errors.Join(err, s.remove(ctx))
	}()
	for _, night := range nights {
		instants, err := s.next(ctx, night.start, night.start.Add(48*time.Hour))
		if err != nil {
			return c, err
		}
		c.nights = append(c.nights, local(instants))
	}
	if err := c.cancels(ctx, s); err != nil {
		return c, err
	}
	if err := s.prepare(ctx, true); err != nil {
		return c, err
	}
	return c, c.killed(ctx, s, o.patience)
}

// local formats instants in the local time of the crontab.
func local(instants []time.Time) string {
	zone, err := time.LoadLocation(nightlyZone)
	if err != nil {
		return err.Error()
	}
	if len(instants) == 0 {
		return "–"
	}
	var texts []string
	for _, t := range instants {
		texts = append(texts, t.In(zone).Format("2 Jan 15:04 MST"))
	}
	return strings.Join(texts, ", ")
}

// robfig returns the instants of the crontab by the package that the documents of River and asynq name.
func robfig(from, to time.Time) (instants []time.Time, err error) {
	schedule, err := cron.ParseStandard("CRON_TZ=" + nightlyZone + " " + nightly)
	if err != nil {
		return nil, err
	}
	for t := schedule.Next(from); t.Before(to); t = schedule.Next(t) {
		instants = append(instants, t)
	}
	return instants, nil
}

// receiver counts how often each job began and completed.
type receiver struct {
	lock        sync.Mutex
	begun, done map[int]int
	last        time.Time
	hold        func(n int) time.Duration
}

// ServeHTTP receives a job's payload.
func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	var job struct {
		N int `json:"n"`
	}
	if err := json.NewDecoder(req.Body).Decode(&job); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	r.lock.Lock()
	r.begun[job.N]++
	r.lock.Unlock()
	select {
	case <-req.Context().Done(): // the worker was killed
	case <-time.After(r.hold(job.N)):
		r.lock.Lock()
		r.done[job.N]++
		r.last = time.Now()
		r.lock.Unlock()
	}
}

func (r *receiver) count() (begun, done int) {
	r.lock.Lock()
	defer r.lock.Unlock()
	return len(r.begun), len(r.done)
}

// working starts a worker, and returns its receiver.
func working(s subject, hold func(n int) time.Duration) (*receiver, *httptest.Server, *exec.Cmd, error) {
	r := &receiver{begun: map[int]int{}, done: map[int]int{}, hold: hold}
	server := httptest.NewServer(r)
	cmd := s.worker(server.URL)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		server.Close()
		return nil, nil, nil, err
	}
	return r, server, cmd, nil
}

// await waits until a condition holds, and returns an error after the limit.
func await(ctx context.Context, limit time.Duration, holds func() bool) error {
	for end := time.Now().Add(limit); !holds(); {
		if time.Now().After(end) {
			return fmt.Errorf("nothing came of it within %s", limit)
		}
		if err := sleep(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// cancels cancels a running job and a waiting one.
func (c *conduct) cancels(ctx context.Context, s subject) error {
	const apart = 15 * time.Second
	r, server, cmd, err := working(s, func(int) time.Duration { return 4 * time.Second })
	if err != nil {
		return err
	}
	defer server.Close()
	defer kill(cmd)
	w := &work{count: 2, payload: 60, start: time.Now().Add(3 * time.Second), every: apart}
	if err := s.insert(ctx, w); err != nil {
		return err
	}
	running := func() bool { begun, _ := r.count(); return begun > 0 }
	if err := await(ctx, time.Minute, running); err != nil {
		return fmt.Errorf("the first job does not run: %w", err)
	}
	if c.running, err = s.cancel(ctx, w, 0); err != nil {
		return err
	}
	if c.waiting, err = s.cancel(ctx, w, 1); err != nil {
		return err
	}
	if err := sleep(ctx, time.Until(w.instant(1).Add(apart))); err != nil {
		return err
	}
	r.lock.Lock()
	defer r.lock.Unlock()
	c.ranWaiting = r.begun[1] > 0
	return nil
}

// killed kills a worker in the middle of its work, and starts another that takes over.
func (c *conduct) killed(ctx context.Context, s subject, limit time.Duration) error {
	r, server, cmd, err := working(s, func(int) time.Duration { return 100 * time.Millisecond })
	if err != nil {
		return err
	}
	defer server.Close()
	w := &work{count: c.count, payload: 60, start: time.Now().Add(5 * time.Second), every: 10 * time.Millisecond}
	if err := s.insert(ctx, w); err != nil {
		kill(cmd)
		return err
	}
	amid := func() bool { begun, done := r.count(); return done >= c.count/4 && begun > done } // some jobs are running
	err = await(ctx, 2*time.Minute, amid)
	kill(cmd)
	if err != nil {
		return fmt.Errorf("before the kill: %w", err)
	}
	at := time.Now()
	next := s.worker(server.URL)
	next.Stderr = os.Stderr
	if err := next.Start(); err != nil {
		return err
	}
	defer kill(next)
	_ = await(ctx, limit, func() bool { _, done := r.count(); return done == c.count }) // otherwise jobs are lost
	r.lock.Lock()
	defer r.lock.Unlock()
	c.done, c.lost = r.last.Sub(at), c.count-len(r.done)
	for _, n := range r.begun {
		if n > 1 {
			c.twice++
		}
	}
	return ctx.Err()
}

// kill ends a process without notice, like a crash.
func kill(cmd *exec.Cmd) {
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

// peerSubject is a peer whose worker is this program.
type peerSubject struct {
	peer
	name    string
	options *options
}

// canceller is a peer that can cancel the i-th job of a work.
type canceller interface {
	cancel(ctx context.Context, w *work, i int) (string, error)
}

func (p *peerSubject) cancel(ctx context.Context, w *work, i int) (string, error) {
	return p.peer.(canceller).cancel(ctx, w, i)
}

// worker returns a process of this program with the command worker.
func (p *peerSubject) worker(receiver string) *exec.Cmd {
	self, err := os.Executable()
	if err != nil {
		self = os.Args[0]
	}
	return exec.Command(self, "worker", p.name, receiver, p.options.postgres, p.options.redis)
}

// next returns the instants by the package that River's and asynq's documents name. The loops have no crontabs.
func (p *peerSubject) next(_ context.Context, from, to time.Time) ([]time.Time, error) {
	if p.name != "river" && p.name != "asynq" {
		return nil, nil
	}
	return robfig(from, to)
}

// runWorker runs a worker: it posts each payload to a receiver until it is killed.
func runWorker(ctx context.Context, args []string) error {
	if len(args) != 4 {
		return errors.New("worker: it is started by conduct")
	}
	p, err := newPeer(ctx, &options{postgres: args[2], redis: args[3]}, args[0], byDefault)
	if err != nil {
		return err
	}
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1000}}
	err = p.start(ctx, func(payload []byte) {
		if answer, err := client.Post(args[1], "application/json", strings.NewReader(string(payload))); err == nil {
			_, _ = io.Copy(io.Discard, answer.Body)
			_ = answer.Body.Close()
		}
	})
	if err != nil {
		return err
	}
	<-ctx.Done()
	return p.stop(context.WithoutCancel(ctx))
}

// writeSummary writes one table with a column for each subject: the medians of its measurements with default settings,
// and its conduct.
func writeSummary(out io.Writer, reports []Report, all []conduct, o *options) error {
	w := bufio.NewWriter(out)
	row := func(name string, cell func(c *conduct) string) {
		fmt.Fprintf(w, "| %s |", name)
		for i := range all {
			fmt.Fprintf(w, " %s |", strings.ReplaceAll(cell(&all[i]), "|", `\|`))
		}
		fmt.Fprintln(w)
	}
	fmt.Fprintf(w, "\nall together\n\n")
	row("", func(c *conduct) string { return c.subject })
	row("---", func(*conduct) string { return "---" })
	for _, f := range summary {
		if slices.Contains(o.modes, f.mode) {
			row(f.head, func(c *conduct) string { return figureOf(reports, f.mode, c.subject, f.figure) })
		}
	}
	row(fmt.Sprintf("`kill -9`: jobs never run to their end within %s", o.patience),
		func(c *conduct) string { return fmt.Sprintf("%d of %d", c.lost, c.count) })
	row("`kill -9`: jobs begun more than once", func(c *conduct) string { return strconv.Itoa(c.twice) })
	row("`kill -9`: the last one was done after, s", func(c *conduct) string {
		if c.lost > 0 {
			return "–"
		}
		return number(c.done.Seconds())
	})
	row("the answer to a cancellation, the job waits", func(c *conduct) string {
		if c.ranWaiting {
			return c.waiting + "; it ran"
		}
		return c.waiting
	})
	row("the answer to a cancellation, the job runs", func(c *conduct) string { return c.running })
	for i, night := range nights {
		row(fmt.Sprintf("`%s` in %s, %s", nightly, nightlyZone, night.name), func(c *conduct) string {
			if i >= len(c.nights) {
				return "?"
			}
			return c.nights[i]
		})
	}
	return w.Flush()
}

// summary lists the figures in the table.
var summary = []struct{ mode, figure, head string }{
	{"drain", "drained", "drained, jobs/s"},
	{"steady", "deviation p50", "late at a steady rate, p50, ms"},
	{"steady", "deviation p99", "the same, p99, ms"},
	{"steady", "early", "the same, jobs that were early"},
	{"idle", "processor", "idle, % of a core"},
}

// figureOf returns the median of a figure, with default settings if there are several.
func figureOf(reports []Report, mode, subject, name string) string {
	for _, r := range reports {
		of := r.Subject
		if of == "carillon" {
			of += "-" + r.Store
		}
		if r.Mode != mode || of != subject || r.Settings == tuned {
			continue
		}
		for _, f := range r.Figures {
			if f.Name == name {
				return number(f.Median)
			}
		}
	}
	return "?"
}
