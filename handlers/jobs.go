package handlers

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/carillon-scheduler/carillon/history"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// getJob answers with a job's definition and a page of its pending occurrences.
func (a *api) getJob(c *gin.Context) error {
	key, err := keyInPath(c)
	if err != nil {
		return err
	}
	query, err := readQuery(c.Request, "limit", "cursor")
	if err != nil {
		return err
	}
	limit, err := limitParameter(query)
	if err != nil {
		return err
	}
	after, err := idCursorParameter(query)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.Request.Context(), storeTime)
	defer cancel()
	now := a.now()
	status, err := a.readableJob(ctx, job.Name{Tenant: who(c).tenant, Key: key}, now)
	if err != nil {
		return err
	}
	filter := store.OccurrenceFilter{
		Name: status.Name, Revision: status.Revision, After: after, Limit: limit + 1, Count: true,
	}
	occurrences, pending, err := a.Store.Occurrences(ctx, filter)
	if err != nil {
		return err
	}
	view := jobView(status, pending)
	if after == (job.ID{}) {
		view.NextInstant = instantText(nextOf(occurrences))
	}
	first := firstPage{occurrences: occurrences, known: after == (job.ID{}), whole: len(occurrences) <= limit}
	own, err := a.countOwn(ctx, status.Name, first)
	if err != nil {
		return err
	}
	view.tellOutcomes(&status.Job, pending-own, first, now)
	if len(occurrences) > limit {
		occurrences = occurrences[:limit]
		view.NextCursor = occurrences[limit-1].ID.String()
	}
	view.tellRetrying(occurrences, now, a.Early)
	for _, o := range occurrences {
		view.Occurrences = append(view.Occurrences, occurrenceView(o, now))
	}
	body := withCallback(mustEncode(view), status.Target())
	writeTagged(c, "application/json", tagOf(status.Version, body), body)
	return nil
}

// readableJob reads a job that clients may still see.
func (a *api) readableJob(ctx context.Context, name job.Name, now time.Time) (store.JobStatus, error) {
	status, err := store.ReadJob(ctx, a.Store, name)
	if err == nil && status.Gone(now) {
		return store.JobStatus{}, store.ErrNotFound
	}
	return status, err
}

// Bounds of a list of jobs by state or kind: the jobs that one request looks through, the jobs per page, and the time
// after which it reads no further page. The kind of a job is in its definition, which may be large, so its pages are
// smaller.
const (
	mostJobs   = 10_000
	pageSize   = 1000
	wholeSize  = 200
	longEnough = 2 * time.Second
)

// listJobs answers with a page of jobs, by key. It leaves out jobs whose retention has ended, and jobs of another state
// or kind than the requested one. So a page may be shorter than its limit although others follow.
func (a *api) listJobs(c *gin.Context) error {
	query, err := readQuery(c.Request, "prefix", "state", "kind", "limit", "cursor")
	if err != nil {
		return err
	}
	filter := store.JobFilter{Tenant: who(c).tenant}
	if query.Get("prefix") != "" { // an empty prefix means all jobs
		if filter.Prefix, err = keyParameter(query, "prefix"); err != nil {
			return err
		}
	}
	limit, err := limitParameter(query)
	if err != nil {
		return err
	}
	if filter.After, err = keyCursorParameter(query); err != nil {
		return err
	}
	w, err := wantedParameters(query)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.Request.Context(), storeTime)
	defer cancel()
	jobs, last, err := a.findJobs(ctx, filter, limit, w)
	if err != nil {
		return err
	}
	items := make([][]byte, len(jobs))
	for i, j := range jobs {
		items[i] = mustEncode(summaryView(j))
	}
	nextCursor := ""
	if last != "" {
		nextCursor = keyCursor(last)
	}
	return writePage(c, items, nextCursor)
}

// lastReserved is behind all keys of the service's own jobs.
const lastReserved = job.ReservedPrefix + "\U0010FFFF"

// wanted is the state and the kind of the jobs to list; each is empty for any.
type wanted struct {
	state string
	kind  job.Kind
}

// has reports whether a job is among them.
func (w wanted) has(j store.JobStatus) bool {
	return (w.state == "" || statusState(j) == w.state) && (w.kind == "" || j.Schedule.Kind() == w.kind)
}

// findJobs reads up to limit of the wanted jobs. Last is the last key that was read if others may follow, else empty.
// The service's own jobs are left out unless the prefix asks for them.
func (a *api) findJobs(
	ctx context.Context, filter store.JobFilter, limit int, w wanted,
) (found []store.JobStatus, last string, err error) {
	pages := 1
	switch {
	case w.kind != "":
		filter.Whole, filter.Limit, pages = true, wholeSize, mostJobs/wholeSize
	case w.state != "":
		filter.Limit, pages = pageSize, mostJobs/pageSize
	default:
		filter.Limit = limit + 1
	}
	now, began := a.now(), time.Now()
	passed := job.Reserved(filter.Prefix) // the keys that are left out
	for ; pages > 0 && time.Since(began) < longEnough; pages-- {
		jobs, err := a.Store.Jobs(ctx, filter)
		if err != nil {
			return nil, "", err
		}
		for _, j := range jobs {
			if len(found) == limit {
				return found, filter.After, nil
			}
			if job.Reserved(j.Key) && !job.Reserved(filter.Prefix) {
				if filter.After = lastReserved; !passed {
					passed = true
					pages++ // this page may have nothing else
				}
				continue
			}
			if !j.Gone(now) && w.has(j) {
				found = append(found, j)
			}
			filter.After = j.Key
		}
		if len(jobs) < filter.Limit {
			return found, "", nil
		}
	}
	return found, filter.After, nil
}

// wantedParameters reads the state and the kind of the jobs to list.
func wantedParameters(query url.Values) (wanted, error) {
	w := wanted{query.Get("state"), job.Kind(query.Get("kind"))}
	if query.Has("state") && !slices.Contains([]string{stateScheduled, statePaused, stateFinished}, w.state) {
		return w, &parameterError{"state", "must be scheduled, paused or finished"}
	}
	if query.Has("kind") && !slices.Contains([]job.Kind{job.KindInstants, job.KindCrontab, job.KindSequence}, w.kind) {
		return w, &parameterError{"kind", "must be instants (which a delay is too), crontab or sequence"}
	}
	return w, nil
}

// cancelled answers the cancellation of one job.
type cancelled struct {
	Cancelled int `json:"cancelled"`
	InFlight  int `json:"inFlight"`
}

// cancelJob cancels one job. With a condition, it leaves alone redriven occurrences of the key, and a job whose
// retention has ended: clients see no job there.
func (a *api) cancelJob(c *gin.Context) error {
	key, err := keyInPath(c)
	if err != nil {
		return err
	}
	match, err := onlyMatch(c.Request)
	if err != nil {
		return err
	}
	ctx, cancel, newer := a.inTime(c.Request)
	defer cancel()
	name, now := job.Name{Tenant: who(c).tenant, Key: key}, a.now()
	status, err := store.ReadJob(ctx, a.Store, name)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	gone := err == nil && status.Gone(now) // then it did not exist for clients
	if !match.Always() && (err != nil || gone) {
		return store.ErrNotFound
	}
	results, err := a.Store.Cancel(ctx, []job.Name{name}, store.Asked{Now: now, Newer: newer, If: match})
	if err != nil {
		return err
	}
	result := results[0]
	if result.Err != nil {
		return result.Err
	}
	if !result.Found || gone && result.Cancelled+result.InFlight == 0 {
		return store.ErrNotFound
	}
	if status.Options.ExpectBy != 0 {
		a.unwatch(ctx, name, newer)
	}
	a.record(ctx, &history.Entry{Kind: history.Cancelled, Name: name})
	return writeJSON(c, http.StatusOK, cancelled{result.Cancelled, result.InFlight})
}

// sliceSize is the number of documents that one step of a long request changes.
const sliceSize = 500

// afterSlices returns the error of a step of a long request. It does not tell that nothing was changed if earlier steps
// have changed anything.
func afterSlices(changed bool, err error) error {
	if changed && errors.Is(err, store.ErrNotDone) {
		return fmt.Errorf("%w: some were changed before: %s", store.ErrUnavailable, err.Error())
	}
	return err
}

// cancelJobs cancels all jobs whose keys begin with a prefix, a slice at a time. With a limit it ends after that
// number, and answers with the cursor to continue from if others may follow.
func (a *api) cancelJobs(c *gin.Context) error {
	filter, left, err := jobsToCancel(c)
	if err != nil {
		return err
	}
	var answer cancelledJobs
	asked := arrival(c.Request)
	for over := asked.Add(store.Within); ; over = time.Now().Add(store.Within) {
		if err := a.readmit(c.Request.Context()); err != nil {
			return afterSlices(answer.changed(), err)
		}
		filter.Limit = min(sliceSize, left)
		ctx, cancel, newer := a.between(c.Request.Context(), asked, over)
		names, sum, err := a.cancelSlice(ctx, newer, filter)
		last := len(names) < filter.Limit
		if err == nil && last {
			a.unwatchAll(ctx, newer, filter.Tenant, filter.Prefix)
		}
		cancel()
		if err != nil {
			return afterSlices(answer.changed(), err)
		}
		answer.add(sum)
		auditOf(c).Changed = answer.Jobs
		if left -= len(names); !last && left > 0 {
			filter.After = names[len(names)-1].Key
			continue
		}
		if !last {
			answer.NextCursor = keyCursor(names[len(names)-1].Key)
		}
		return writeJSON(c, http.StatusOK, answer)
	}
}

// jobsToCancel reads the selection of a request that cancels many jobs, and the largest number to cancel.
func jobsToCancel(c *gin.Context) (filter store.JobFilter, most int, err error) {
	query, err := readQuery(c.Request, "prefix", "limit", "cursor")
	if err != nil {
		return filter, 0, err
	}
	if err := refuseConditions(c.Request); err != nil {
		return filter, 0, err
	}
	if query.Get("prefix") == "" {
		return filter, 0, &parameterError{"prefix", "is required and must not be empty: it selects the jobs to cancel"}
	}
	if query.Has("cursor") && !query.Has("limit") {
		return filter, 0, &parameterError{"cursor", "needs a limit: without one, all are cancelled in one request"}
	}
	// Also redriven occurrences whose job is gone.
	filter = store.JobFilter{Tenant: who(c).tenant, Standalone: true}
	if filter.Prefix, err = keyParameter(query, "prefix"); err != nil {
		return filter, 0, err
	}
	if filter.After, err = keyCursorParameter(query); err != nil || !query.Has("limit") {
		return filter, math.MaxInt, err
	}
	most, err = limitParameter(query)
	return filter, most, err
}

// cancelledJobs sums up cancelled jobs and their occurrences.
type cancelledJobs struct {
	Jobs int `json:"jobs"`
	cancelled
	NextCursor string `json:"nextCursor,omitzero"`
}

func (c *cancelledJobs) add(more cancelledJobs) {
	c.Jobs += more.Jobs
	c.Cancelled += more.Cancelled
	c.InFlight += more.InFlight
}

// changed reports whether anything was cancelled.
func (c *cancelledJobs) changed() bool { return c.Jobs+c.Cancelled+c.InFlight > 0 }

// cancelSlice cancels one page of jobs, and of occurrences without a job.
func (a *api) cancelSlice(
	ctx context.Context, newer store.Span, filter store.JobFilter,
) (names []job.Name, sum cancelledJobs, err error) {
	page, err := a.Store.Jobs(ctx, filter)
	if err != nil {
		return nil, sum, err
	}
	for i := range page {
		names = append(names, page[i].Name)
	}
	results, err := a.Store.Cancel(ctx, names, store.Asked{Now: a.now(), Newer: newer})
	for i, result := range results {
		// A job that is not found was cancelled by another client; one whose retention has ended did not exist for clients.
		j, some := &page[i], result.Cancelled+result.InFlight > 0
		if result.Found && j.Revision != "" && (some || !j.Gone(a.now())) {
			sum.Jobs++
			a.record(ctx, &history.Entry{Kind: history.Cancelled, Name: names[i]})
		}
		sum.Cancelled += result.Cancelled
		sum.InFlight += result.InFlight
	}
	return names, sum, err
}
