package handlers

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// deadLetter is a dead letter in the form of a list; withCallback adds its callback.
type deadLetter struct {
	ID         string `json:"id"`
	DeliveryID string `json:"deliveryId"`
	Key        string `json:"key"`
	Timestamp  string `json:"timestamp"`
	part
	FailedAt string `json:"failedAt"`
	Attempt  int    `json:"attempt"`
	Error    string `json:"error"`
}

// listDeadLetters answers with a page of dead letters, by id, which is by instant.
func (a *api) listDeadLetters(c *gin.Context) error {
	query, err := readQuery(c.Request, "key", "prefix", "limit", "cursor")
	if err != nil {
		return err
	}
	filter, err := a.deadLetterFilter(c, query)
	if err != nil {
		return err
	}
	limit, err := limitParameter(query)
	if err != nil {
		return err
	}
	if filter.After, err = idCursorParameter(query); err != nil {
		return err
	}
	items, nextCursor, err := a.deadLetterPage(c.Request.Context(), filter, limit)
	if err != nil {
		return err
	}
	return writePage(c, items, nextCursor)
}

// The bytes at which a page of dead letters ends, and the dead letters per read: each may have a large payload.
const (
	pageWeight = 4 << 20
	pagePart   = 16
)

// deadLetterPage reads a page and encodes it.
func (a *api) deadLetterPage(
	ctx context.Context, filter store.DeadLetterFilter, limit int,
) (items [][]byte, nextCursor string, err error) {
	ctx, cancel := context.WithTimeout(ctx, storeTime)
	defer cancel()
	for weight := 0; ; {
		part := min(pagePart, limit-len(items))
		filter.Limit = part + 1 // one more, to see whether others follow
		letters, err := a.Store.DeadLetters(ctx, filter)
		if err != nil {
			return nil, "", err
		}
		more := len(letters) > part
		for _, o := range letters[:min(part, len(letters))] {
			item := deadLetterItem(o)
			items, weight = append(items, item), weight+len(item)
			filter.After = o.ID
		}
		switch {
		case !more:
			return items, "", nil
		case len(items) == limit || weight >= pageWeight:
			return items, filter.After.String(), nil
		}
	}
}

// deadLetterItem encodes a dead letter.
func deadLetterItem(o job.Occurrence) []byte {
	item := mustEncode(deadLetter{
		ID:         o.ID.String(),
		DeliveryID: o.DeliveryID().String(),
		Key:        o.Name.Key,
		Timestamp:  job.FormatTime(o.Timestamp),
		part:       partView(o.Part),
		FailedAt:   job.FormatTime(o.FailedAt),
		Attempt:    o.Attempt,
		Error:      o.LastError,
	})
	if o.Own == nil {
		return item
	}
	return withCallback(item, *o.Own)
}

// deadLetterFilter reads the selection of a query: the dead letters of one key, of a prefix, or all.
func (a *api) deadLetterFilter(c *gin.Context, query url.Values) (store.DeadLetterFilter, error) {
	filter := store.DeadLetterFilter{Tenant: who(c).tenant}
	if query.Has("key") && query.Has("prefix") {
		return filter, &parameterError{"prefix", "can't be combined with key; give one of them"}
	}
	var err error
	if filter.Key, err = keyParameter(query, "key"); err != nil {
		return filter, err
	}
	filter.Prefix, err = keyParameter(query, "prefix")
	return filter, err
}

// redriven is the number of dead letters that were made due again.
type redriven struct {
	Redriven   int    `json:"redriven"`
	NextCursor string `json:"nextCursor,omitzero"` // where to continue, if the request was for a part
}

var errNoDeadLetter = &statusError{http.StatusNotFound, "there is no dead letter with this id"}

// redriveOne makes one dead letter due again.
func (a *api) redriveOne(c *gin.Context) error {
	n, err := a.oneDeadLetter(c, store.Redrive)
	if err != nil {
		return err
	}
	return writeJSON(c, http.StatusOK, redriven{n, ""})
}

// deleteDeadLetter deletes one dead letter.
func (a *api) deleteDeadLetter(c *gin.Context) error {
	if _, err := a.oneDeadLetter(c, store.Discard); err != nil {
		return err
	}
	writeNoBody(c, http.StatusNoContent)
	return nil
}

// redriveMany makes the dead letters of a key, of a prefix or of the tenant due again, a slice at a time.
func (a *api) redriveMany(c *gin.Context) error {
	n, next, err := a.manyDeadLetters(c, "redrive", store.Redrive)
	if err != nil {
		return err
	}
	return writeJSON(c, http.StatusOK, redriven{n, next})
}

// deleted is the number of deleted dead letters.
type deleted struct {
	Deleted    int    `json:"deleted"`
	NextCursor string `json:"nextCursor,omitzero"`
}

// deleteDeadLetters deletes the dead letters of a key, of a prefix or of the tenant, a slice at a time.
func (a *api) deleteDeadLetters(c *gin.Context) error {
	n, next, err := a.manyDeadLetters(c, "delete", store.Discard)
	if err != nil {
		return err
	}
	return writeJSON(c, http.StatusOK, deleted{n, next})
}

// oneDeadLetter settles the dead letter that a path names.
func (a *api) oneDeadLetter(c *gin.Context, outcome store.DeadOutcome) (n int, err error) {
	id, err := a.deadLetterInPath(c)
	if err != nil {
		return 0, err
	}
	ctx, cancel, _ := a.inTime(c.Request)
	defer cancel()
	filter := store.DeadLetterFilter{Tenant: who(c).tenant, ID: id, Limit: 1, Brief: true}
	if _, n, err = a.deadLetterSlice(ctx, filter, outcome); err == nil && n == 0 {
		err = errNoDeadLetter
	}
	return n, err
}

// manyDeadLetters settles the dead letters that a request selects, a slice at a time, and counts them. With a limit it
// ends after that number, and returns the cursor to continue from if others may follow. Verb names the outcome.
func (a *api) manyDeadLetters(
	c *gin.Context, verb string, outcome store.DeadOutcome,
) (sum int, next string, err error) {
	query, err := readQuery(c.Request, "key", "prefix", "all", "limit", "cursor")
	if err != nil {
		return 0, "", err
	}
	filter, left, err := a.deadLettersToSettle(c, query, verb)
	if err != nil {
		return 0, "", err
	}
	filter.Brief = true
	asked := arrival(c.Request)
	for over := asked.Add(store.Within); ; over = time.Now().Add(store.Within) {
		if err := a.readmit(c.Request.Context()); err != nil {
			return 0, "", afterSlices(sum > 0, err)
		}
		filter.Limit = min(sliceSize, left)
		ctx, cancel, _ := a.between(c.Request.Context(), asked, over)
		ids, n, err := a.deadLetterSlice(ctx, filter, outcome)
		cancel()
		if err != nil {
			return 0, "", afterSlices(sum > 0, err)
		}
		sum += n
		auditOf(c).Changed = sum
		if len(ids) < filter.Limit {
			return sum, "", nil
		}
		filter.After = ids[len(ids)-1] // skip one that is redriven and fails again meanwhile: its id is the same
		if left -= len(ids); left == 0 {
			return sum, filter.After.String(), nil
		}
	}
}

// deadLettersToSettle reads the selection of a request that settles many, and the largest number to settle.
func (a *api) deadLettersToSettle(
	c *gin.Context, query url.Values, verb string,
) (filter store.DeadLetterFilter, most int, err error) {
	if filter, err = a.deadLetterFilter(c, query); err != nil {
		return filter, 0, err
	}
	some := query.Has("key") || query.Has("prefix")
	switch {
	case some && query.Has("all"):
		return filter, 0, &parameterError{"all", "can't be combined with key or prefix; give one of them"}
	case query.Has("all") && query.Get("all") != "true":
		return filter, 0, &parameterError{"all", "must be true, or be left out"}
	case !some && !query.Has("all"):
		reason := fmt.Sprintf("is required, or else prefix or all=true: it selects the dead letters to %s", verb)
		return filter, 0, &parameterError{"key", reason}
	case query.Has("cursor") && !query.Has("limit"):
		return filter, 0, &parameterError{"cursor", "needs a limit: without one, all are settled in one request"}
	}
	if filter.After, err = idCursorParameter(query); err != nil || !query.Has("limit") {
		return filter, math.MaxInt, err
	}
	most, err = limitParameter(query)
	return filter, most, err
}

// deadLetterSlice settles one page of dead letters.
func (a *api) deadLetterSlice(
	ctx context.Context, filter store.DeadLetterFilter, outcome store.DeadOutcome,
) (ids []job.ID, n int, err error) {
	letters, err := a.Store.DeadLetters(ctx, filter)
	if err != nil || len(letters) == 0 {
		return nil, 0, err
	}
	for _, o := range letters {
		ids = append(ids, o.ID)
	}
	if n, err = a.settleDead(ctx, filter.Tenant, ids, outcome); n > 0 {
		// This includes a letter that another request has settled meanwhile: the store does not report which ones it found.
		a.recordDead(ctx, letters, outcome)
	}
	return ids, n, err
}

// settleDead settles dead letters, and wakes the dispatcher for redriven ones.
func (a *api) settleDead(ctx context.Context, tenant string, ids []job.ID, outcome store.DeadOutcome) (int, error) {
	now := a.now()
	n, err := a.Store.SettleDead(ctx, store.DeadSettlement{Tenant: tenant, IDs: ids, Outcome: outcome, Now: now})
	if n > 0 && outcome == store.Redrive {
		a.wakeTenant(tenant, now)
	}
	return n, err
}

// deadLetterInPath returns the id in the path. A malformed id is answered like an unknown one.
func (a *api) deadLetterInPath(c *gin.Context) (job.ID, error) {
	if _, err := readQuery(c.Request); err != nil {
		return job.ID{}, err
	}
	id, err := job.ParseID(c.Param("id"))
	if err != nil {
		return job.ID{}, errNoDeadLetter
	}
	return id, nil
}
