package handlers

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/carillon-scheduler/carillon/access"
	"github.com/carillon-scheduler/carillon/access/limits"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// keyView is a key in the form of the answer.
type keyView struct {
	ID            string      `json:"id"`
	Key           string      `json:"key,omitzero"` // shown once, when it is made
	Role          access.Role `json:"role"`
	Tenants       []string    `json:"tenants"`
	KeyPrefix     string      `json:"keyPrefix,omitzero"`
	Note          string      `json:"note,omitzero"`
	CreatedBy     string      `json:"createdBy"`
	CreatedAt     string      `json:"createdAt"`
	ExpiresAt     string      `json:"expiresAt,omitzero"`
	RotatedAt     string      `json:"rotatedAt,omitzero"`
	OldValidUntil string      `json:"oldValidUntil,omitzero"`
	LastUsed      string      `json:"lastUsed,omitzero"`

	Limits limits.Draft `json:"limits,omitzero"`
}

func viewKey(k access.Key, token string) keyView {
	return keyView{
		ID: k.ID, Key: token, Role: k.Role, Tenants: k.Scope.Tenants, KeyPrefix: k.Scope.KeyPrefix, Note: k.Note,
		CreatedBy: k.CreatedBy, CreatedAt: job.FormatTime(k.CreatedAt), ExpiresAt: instantText(k.ExpiresAt),
		RotatedAt: instantText(k.RotatedAt), OldValidUntil: instantText(k.OldValidUntil), LastUsed: instantText(k.LastUsed),
		Limits: k.Limits,
	}
}

// unkept forbids caches to store the answer: it may contain a key.
func unkept(handle func(*gin.Context) error) func(*gin.Context) error {
	return func(c *gin.Context) error {
		c.Header("Cache-Control", "no-store")
		return handle(c)
	}
}

// manages reports whether a caller may see and change a key: the key must not have more permissions than the caller.
func (w *caller) manages(role access.Role, scope access.Scope) bool {
	return slices.Index(access.Roles(), role) <= slices.Index(access.Roles(), w.Role) && scope.Within(w.Scope)
}

// mayGive refuses a token that would be valid for longer than the caller's own key.
func (w *caller) mayGive(until time.Time) error {
	if w.ExpiresAt.IsZero() || !until.IsZero() && !until.After(w.ExpiresAt) {
		return nil
	}
	return &statusError{http.StatusForbidden, "a key can't give tokens that outlive it, and yours expires at " +
		job.FormatTime(w.ExpiresAt) + ": the other key's expiresAt must not be later"}
}

// mayLimit refuses limits of another key that are higher than the caller's, unless the caller is for everything.
func (a *api) mayLimit(by *caller, own limits.Draft) error {
	if by.Scope.All() && by.Scope.KeyPrefix == "" || a.Limiter.Within(own, by.Limits) {
		return nil
	}
	return &statusError{http.StatusForbidden, "a key can't have higher limits than yours, unless yours is for all " +
		`tenants ("*"): give it limits within yours, each that yours has`}
}

// createKey makes a key, and shows it this once.
func (a *api) createKey(c *gin.Context) error {
	if _, err := readQuery(c.Request); err != nil {
		return err
	}
	now, by := a.now(), who(c)
	parse := func(body []byte) (access.KeyParams, error) { return access.ParseKeyParams(body, now) }
	return change(a, c, parse, func(ctx context.Context, params access.KeyParams) error {
		if !by.manages(params.Role, params.Scope) {
			return &statusError{http.StatusForbidden, fmt.Sprintf("a key can't have more than yours, which has the role %s, "+
				"the tenants %q and the key prefix %q", by.Role, by.Scope.Tenants, by.Scope.KeyPrefix)}
		}
		if err := by.mayGive(params.ExpiresAt); err != nil {
			return err
		}
		if err := a.mayLimit(by, params.Limits); err != nil {
			return err
		}
		token, key, err := a.Keys.Create(ctx, params, by.ID, now)
		if err != nil {
			return err
		}
		auditOf(c).Target = key.ID
		c.Header("Location", "/v1/keys/"+key.ID)
		return writeJSON(c, http.StatusCreated, viewKey(key, token))
	})
}

// listKeys answers with a page of the keys that the caller manages, by id.
func (a *api) listKeys(c *gin.Context) error {
	return listNames(c, func(ctx context.Context, after string, limit int) ([]keyView, error) {
		keys, err := a.findKeys(ctx, who(c), after, limit)
		views := make([]keyView, len(keys))
		for i, k := range keys {
			views[i] = viewKey(k, "")
		}
		return views, err
	}, func(v keyView) string { return v.ID })
}

// findKeys reads up to limit of the keys that the caller manages and whose ids sort after an id. It also reads all keys
// between them: a cursor must not name a key that the caller can't see.
func (a *api) findKeys(ctx context.Context, by *caller, after string, limit int) (found []access.Key, err error) {
	for size := limit; ; size = min(2*size, pageSize) {
		page, err := a.Keys.List(ctx, after, size)
		if err != nil {
			return nil, err
		}
		for _, k := range page {
			if by.manages(k.Role, k.Scope) {
				found = append(found, k)
			}
			if after = k.ID; len(found) == limit {
				return found, nil
			}
		}
		if len(page) < size {
			return found, nil
		}
	}
}

var errNoKey = &statusError{http.StatusNotFound, "there is no key with this id"}

// keyOfPath reads the key that a path names, if the caller manages it. The query must be empty.
func (a *api) keyOfPath(ctx context.Context, c *gin.Context) (access.Key, error) {
	if _, err := readQuery(c.Request); err != nil {
		return access.Key{}, err
	}
	key, err := a.Keys.Key(ctx, c.Param("id"))
	if err == nil && !who(c).manages(key.Role, key.Scope) {
		err = store.ErrNotFound
	}
	return key, noKey(err)
}

// noKey maps the error of a call about a key.
func noKey(err error) error {
	if errors.Is(err, store.ErrNotFound) {
		return errNoKey
	}
	return err
}

// getKey answers with one key.
func (a *api) getKey(c *gin.Context) error {
	ctx, cancel := context.WithTimeout(c.Request.Context(), storeTime)
	defer cancel()
	key, err := a.keyOfPath(ctx, c)
	if err != nil {
		return err
	}
	return writeJSON(c, http.StatusOK, viewKey(key, ""))
}

// rotation is a submitted rotation of a key.
type rotation struct {
	// Overlap is the time for which the present token stays valid. It is required: a default of 0 would cut off all
	// clients that use the token.
	Overlap *job.Duration `json:"overlap" validate:"required"`
}

// rotateKey gives a key another token, and shows it this once.
func (a *api) rotateKey(c *gin.Context) error {
	return change(a, c, job.Parse[*rotation], func(ctx context.Context, rotated *rotation) error {
		key, err := a.keyOfPath(ctx, c)
		if err != nil {
			return err
		}
		if err := who(c).mayGive(key.ExpiresAt); err != nil {
			return err
		}
		token, key, err := a.Keys.Rotate(ctx, key.ID, time.Duration(*rotated.Overlap), a.now())
		if err != nil {
			return noKey(err)
		}
		return writeJSON(c, http.StatusOK, viewKey(key, token))
	})
}

// putKeyLimits replaces all of a key's own limits.
func (a *api) putKeyLimits(c *gin.Context) error {
	return change(a, c, limits.ParseDraft, func(ctx context.Context, own limits.Draft) error {
		key, err := a.keyOfPath(ctx, c)
		if err != nil {
			return err
		}
		if err := a.mayLimit(who(c), own); err != nil {
			return err
		}
		key, err = a.Keys.SetLimits(ctx, key.ID, own, a.now())
		if err != nil {
			return noKey(err)
		}
		return writeJSON(c, http.StatusOK, viewKey(key, ""))
	})
}

// revokeKey ends a key.
func (a *api) revokeKey(c *gin.Context) error {
	return a.changeOnly(c, func(ctx context.Context) error {
		key, err := a.keyOfPath(ctx, c)
		if err != nil {
			return err
		}
		if err := a.Keys.Revoke(ctx, key.ID, a.now()); err != nil {
			return noKey(err)
		}
		writeNoBody(c, http.StatusNoContent)
		return nil
	})
}
