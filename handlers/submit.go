package handlers

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/carillon-scheduler/carillon/access"
	"github.com/carillon-scheduler/carillon/forecast"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// postJob creates or replaces the job that the body names.
func (a *api) postJob(c *gin.Context) error { return a.put(c, "") }

// putJob creates or replaces the job that the path names.
func (a *api) putJob(c *gin.Context) error {
	key, err := keyInPath(c)
	if err != nil {
		return err
	}
	return a.put(c, key)
}

// put creates or replaces one job. Key is the key in the path, or empty.
func (a *api) put(c *gin.Context, key string) error {
	if _, err := readQuery(c.Request); err != nil {
		return err
	}
	condition, err := putCondition(c.Request)
	if err != nil {
		return err
	}
	body, err := a.readJSON(c)
	if err != nil {
		return err
	}
	draft, err := job.Decode(body)
	if err != nil {
		return err
	}
	if key != "" {
		if draft.Key != "" && draft.Key != key {
			return job.InvalidField("/key", fmt.Sprintf("must be %q, as in the path, or be left out", key))
		}
		draft.Key = key
	}
	auditOf(c).Key = draft.Key
	s, err := a.check(c.Request.Context(), who(c), draft)
	if err != nil {
		return err
	}
	ctx, cancel, newer := a.inTime(c.Request)
	defer cancel()
	s.condition, s.newer = condition, newer
	s.job.Options.Trace = traceOf(c.Request)
	s.origin = InsideOf(ctx).item(0)
	o := a.submit(ctx, []*submission{s})[0]
	if o.err != nil {
		return o.err
	}
	if o.created {
		c.Header("Location", jobPath(o.key))
	}
	setETag(c, o.version)
	return writeJSON(c, o.status(), acceptedView(&o))
}

// submission is a checked job that is not stored yet. Its schedule has not started.
type submission struct {
	job       job.Job
	past      job.Past
	condition store.Condition
	// newer has the versions that were accepted after the submission.
	newer store.Span
	// origin is zero for a client's own request.
	origin InsideItem
	// before is the job that a patch has made the submission of; nil if it is no patch.
	before *job.Job
}

// check makes a submission of a draft. The error is a [*job.Invalid], the error of a job beyond the caller's scope, or
// an error of the store, which is read for secrets.
func (a *api) check(ctx context.Context, by *caller, draft job.Draft) (*submission, error) {
	if !by.Scope.HasKey(draft.Key) {
		return nil, beyond(by.Scope)
	}
	j, err := draft.Job(by.tenant, a.limitsOf(by))
	if err != nil {
		return nil, err
	}
	if err := a.Callbacks.Validate(j.Target()); err != nil {
		return nil, err
	}
	if err := a.Callbacks.Granted(by.tenant, j.Callback); err != nil {
		return nil, err
	}
	if by.May(access.Submit) { // callers that may only preview learn nothing about secrets
		if err := a.checkSecrets(ctx, by.tenant, j.Target()); err != nil {
			return nil, err
		}
	}
	return &submission{job: j, past: draft.PastOrDefault()}, nil
}

// outcome is the result of a submission. If err is set, no other field means anything.
type outcome struct {
	key         string
	revision    job.Revision
	version     job.Revision
	missed      int
	created     bool
	live        bool
	occurrences int
	skipped     int
	settled     int
	next        time.Time // the earliest instant of the occurrences; zero if there are none
	inFlight    int
	paused      bool
	crowded     []forecast.Crowded
	amended     bool // the schedule and its occurrences are unchanged
	err         error
}

func (o *outcome) status() int {
	if o.created {
		return http.StatusCreated
	}
	return http.StatusOK
}

// submit stores submissions and returns their outcomes in the same order. Submissions of the same name are stored one
// after the other. No submission takes effect after ctx ends.
func (a *api) submit(ctx context.Context, submissions []*submission) []outcome {
	outcomes := make([]outcome, len(submissions))
	now := a.now()
	attempts := make([]*attempt, len(submissions))
	for i, s := range submissions {
		attempts[i] = a.newAttempt(s, &outcomes[i], now)
	}
	for len(attempts) > 0 {
		n := a.admitToQuota(ctx, attempts[:distinctNames(attempts)])
		a.run(ctx, slices.Clone(attempts[:n]))
		a.settleQuota(ctx, attempts[:n])
		a.watchAll(ctx, attempts[:n])
		allowEarlier(attempts[:n], attempts[n:])
		attempts = attempts[n:]
	}
	return outcomes
}

// distinctNames returns the number of attempts before the first repeated name. They may run at the same time.
func distinctNames(attempts []*attempt) int {
	names := make(map[job.Name]bool, len(attempts))
	for i, t := range attempts {
		if names[t.job.Name] {
			return i
		}
		names[t.job.Name] = true
	}
	return len(attempts)
}

// allowEarlier lets later attempts replace the versions that earlier attempts of the same batch have stored.
func allowEarlier(earlier, later []*attempt) {
	if len(later) == 0 {
		return
	}
	versions := make(map[job.Name]job.Revision, len(earlier))
	for _, t := range earlier {
		if t.outcome.err == nil {
			versions[t.job.Name] = t.outcome.version
		}
	}
	for _, t := range later {
		if version := versions[t.job.Name]; version > t.newer.After && t.newer != (store.Span{}) {
			t.newer.After = version
		}
	}
}

// maxRounds bounds the rounds of an attempt. Each further round means that another client changed the job between two
// steps of the attempt.
const maxRounds = 8

// run runs attempts of distinct names until they are done. In a round, it reads the jobs of the attempts that need it,
// and then puts all jobs that are ready, in one call.
func (a *api) run(ctx context.Context, attempts []*attempt) {
	for range maxRounds {
		a.readAll(ctx, attempts)
		a.putAll(ctx, attempts)
		attempts = slices.DeleteFunc(attempts, func(t *attempt) bool { return t.state == done })
		if len(attempts) == 0 {
			return
		}
	}
	for _, t := range attempts {
		t.outcome.err = tooFast(t.job.Name)
	}
}

func tooFast(name job.Name) error {
	return fmt.Errorf("%w: other requests keep changing job %s", store.ErrNotDone, name)
}
