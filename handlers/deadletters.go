package handlers

import (
	"context"
	"net/http"
	"net/url"

	"github.com/gin-gonic/gin"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// deadLetter is a dead letter as it is listed; its callback is added by withCallback.
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

// A page of dead letters ends when it holds so many bytes, and is read in parts, since each may have a large payload.
const (
	pageWeight = 4 << 20
	pagePart   = 16
)

// deadLetterPage reads a page and encodes it.
func (a *api) deadLetterPage(ctx context.Context, filter store.DeadLetterFilter, limit int) (items [][]byte, nextCursor string, err error) {
	ctx, cancel := context.WithTimeout(ctx, storeTime)
	defer cancel()
	for weight := 0; ; {
		part := min(pagePart, limit-len(items))
		filter.Limit = part + 1 // one more, to tell whether others follow
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

// deadLetterFilter reads which dead letters a query means: those of one key, of a prefix, or all.
func (a *api) deadLetterFilter(c *gin.Context, query url.Values) (store.DeadLetterFilter, error) {
	filter := store.DeadLetterFilter{Tenant: a.tenant(c)}
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

// redriven answers how many dead letters were made due again.
type redriven struct {
	Redriven int `json:"redriven"`
}

var errNoDeadLetter = &statusError{http.StatusNotFound, "there is no dead letter with this id"}

// redriveOne makes one dead letter due again.
func (a *api) redriveOne(c *gin.Context) error {
	id, err := a.deadLetterInPath(c)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.Request.Context(), storeTime)
	defer cancel()
	now := a.now()
	n, err := a.Store.Redrive(ctx, a.tenant(c), []job.ID{id}, now)
	if err != nil {
		return err
	}
	if n == 0 {
		return errNoDeadLetter
	}
	a.wakeTenant(a.tenant(c), now)
	return writeJSON(c, http.StatusOK, redriven{n})
}

// redriveMany makes the dead letters of a key or a prefix due again, a slice at a time.
func (a *api) redriveMany(c *gin.Context) error {
	query, err := readQuery(c.Request, "key", "prefix")
	if err != nil {
		return err
	}
	if !query.Has("key") && !query.Has("prefix") {
		return &parameterError{"key", "is required, or else prefix: it says which dead letters to redrive"}
	}
	filter, err := a.deadLetterFilter(c, query)
	if err != nil {
		return err
	}
	filter.Limit, filter.Brief = sliceSize, true
	var answer redriven
	for more := true; more; {
		ids, n, err := a.redriveSlice(c.Request.Context(), filter)
		if err != nil {
			return err
		}
		answer.Redriven += n
		// One that fails again while we go on has the same id, so the next page starts behind: that ends.
		if more = len(ids) == sliceSize; more {
			filter.After = ids[len(ids)-1]
		}
	}
	return writeJSON(c, http.StatusOK, answer)
}

// redriveSlice redrives one page of dead letters.
func (a *api) redriveSlice(ctx context.Context, filter store.DeadLetterFilter) (ids []job.ID, n int, err error) {
	ctx, cancel := context.WithTimeout(ctx, storeTime)
	defer cancel()
	letters, err := a.Store.DeadLetters(ctx, filter)
	if err != nil || len(letters) == 0 {
		return nil, 0, err
	}
	for _, o := range letters {
		ids = append(ids, o.ID)
	}
	now := a.now()
	if n, err = a.Store.Redrive(ctx, filter.Tenant, ids, now); n > 0 {
		a.wakeTenant(filter.Tenant, now)
	}
	return ids, n, err
}

// deleteDeadLetter deletes one dead letter.
func (a *api) deleteDeadLetter(c *gin.Context) error {
	id, err := a.deadLetterInPath(c)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.Request.Context(), storeTime)
	defer cancel()
	n, err := a.Store.DeleteDeadLetters(ctx, a.tenant(c), []job.ID{id})
	if err != nil {
		return err
	}
	if n == 0 {
		return errNoDeadLetter
	}
	writeNoBody(c, http.StatusNoContent)
	return nil
}

// deadLetterInPath is the id that a path names. What can't be an id is no dead letter's.
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
