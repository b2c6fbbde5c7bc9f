package handlers

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/secrets"
	"github.com/carillon-scheduler/carillon/store"
)

// secretView is a named secret in the form of the answer, without its value.
type secretView struct {
	Name         string   `json:"name"`
	Destinations []string `json:"destinations,omitzero"`
	CreatedAt    string   `json:"createdAt"`
	UpdatedAt    string   `json:"updatedAt"`
}

func viewSecret(n secrets.Named) secretView {
	return secretView{n.Name, n.Destinations, job.FormatTime(n.CreatedAt), job.FormatTime(n.UpdatedAt)}
}

// listSecrets answers with a page of the tenant's named secrets.
func (a *api) listSecrets(c *gin.Context) error {
	return listNames(c, func(ctx context.Context, after string, limit int) ([]secretView, error) {
		found, err := a.Secrets.List(ctx, who(c).tenant, after, limit)
		views := make([]secretView, len(found))
		for i, n := range found {
			views[i] = viewSecret(n)
		}
		return views, err
	}, func(v secretView) string { return v.Name })
}

// listNames answers with a page of objects, ordered by name.
func listNames[V any](
	c *gin.Context, list func(ctx context.Context, after string, limit int) ([]V, error), nameOf func(V) string,
) error {
	query, err := readQuery(c.Request, "limit", "cursor")
	if err != nil {
		return err
	}
	limit, err := limitParameter(query)
	if err != nil {
		return err
	}
	after, err := keyCursorParameter(query)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.Request.Context(), storeTime)
	defer cancel()
	views, err := list(ctx, after, limit+1)
	if err != nil {
		return err
	}
	nextCursor := ""
	if len(views) > limit {
		views = views[:limit]
		nextCursor = keyCursor(nameOf(views[limit-1]))
	}
	items := make([][]byte, len(views))
	for i, v := range views {
		items[i] = mustEncode(v)
	}
	return writePage(c, items, nextCursor)
}

// secretDraft is a submitted named secret.
type secretDraft struct {
	Value        string   `json:"value"`
	Destinations []string `json:"destinations"`
}

func (d secretDraft) value() secrets.Value {
	return secrets.Value{Text: d.Value, Destinations: d.Destinations}
}

// Check implements [job.Checker].
func (d secretDraft) Check(invalid *job.Invalid) { d.value().Check(invalid) }

// putSecret creates or replaces a named secret.
func (a *api) putSecret(c *gin.Context) error {
	name, err := secretInPath(c, job.ValidSecretName)
	if err != nil {
		return err
	}
	return change(a, c, job.Parse[secretDraft], func(ctx context.Context, draft secretDraft) error {
		put, created, err := a.Secrets.Put(ctx, who(c).tenant, name, draft.value(), a.now())
		if err != nil {
			return secretError(err)
		}
		status := http.StatusOK
		if created {
			status = http.StatusCreated
		}
		return writeJSON(c, status, viewSecret(put))
	})
}

// deleteSecret deletes a named secret.
func (a *api) deleteSecret(c *gin.Context) error {
	return a.deleteNamed(c, job.ValidSecretName, a.Secrets.Delete)
}

// deleteNamed deletes a named secret or a signing secret.
func (a *api) deleteNamed(
	c *gin.Context, valid func(string) bool, remove func(ctx context.Context, tenant, name string) error,
) error {
	name, err := secretInPath(c, valid)
	if err != nil {
		return err
	}
	return a.changeOnly(c, func(ctx context.Context) error {
		if err := remove(ctx, who(c).tenant, name); err != nil {
			return secretError(err)
		}
		writeNoBody(c, http.StatusNoContent)
		return nil
	})
}

// signingView is a signing secret in the form of the answer. Only the answer to its creation has the secret itself.
type signingView struct {
	Name      string           `json:"name"`
	Secret    string           `json:"secret,omitzero"`
	CreatedAt string           `json:"createdAt"`
	UpdatedAt string           `json:"updatedAt"`
	Valid     []generationView `json:"valid"`
}

type generationView struct {
	Until     string `json:"until,omitzero"`
	PublicKey string `json:"publicKey,omitzero"`
}

func viewSigning(s secrets.Signing, secret string) signingView {
	v := signingView{
		Name: s.Name, Secret: secret, CreatedAt: job.FormatTime(s.CreatedAt), UpdatedAt: job.FormatTime(s.UpdatedAt),
		Valid: make([]generationView, len(s.Valid)),
	}
	for i, g := range s.Valid {
		v.Valid[i] = generationView{instantText(g.Until), g.PublicKey}
	}
	return v
}

// listSigningSecrets answers with a page of the tenant's signing secrets.
func (a *api) listSigningSecrets(c *gin.Context) error {
	return listNames(c, func(ctx context.Context, after string, limit int) ([]signingView, error) {
		found, err := a.Secrets.ListSigning(ctx, who(c).tenant, after, limit, a.now())
		views := make([]signingView, len(found))
		for i, s := range found {
			views[i] = viewSigning(s, "")
		}
		return views, err
	}, func(v signingView) string { return v.Name })
}

// signingDraft is a submitted signing secret.
type signingDraft struct {
	Name    string  `json:"name"`
	Secret  *string `json:"secret"`
	Ed25519 bool    `json:"ed25519"`
}

// Check implements [job.Checker].
func (d signingDraft) Check(invalid *job.Invalid) {
	switch {
	case d.Name == "":
		invalid.Add("/name", fmt.Sprintf("is required; %q signs the callbacks that name no other",
			job.DefaultSigning))
	case !job.ValidSigningName(d.Name):
		invalid.Add("/name", signingRule)
	}
	checkGiven(d.Secret, invalid)
}

// checkGiven notes the faults of a signing secret that the client has supplied.
func checkGiven(secret *string, invalid *job.Invalid) {
	if secret == nil {
		return
	}
	if _, err := secrets.ParseSigningSecret(*secret); err != nil {
		invalid.Add("/secret", err.Error()+", or left out for a random one")
	}
}

// postSigningSecret creates a signing secret, and shows it this once.
func (a *api) postSigningSecret(c *gin.Context) error {
	if _, err := readQuery(c.Request); err != nil {
		return err
	}
	return change(a, c, job.Parse[signingDraft], func(ctx context.Context, draft signingDraft) error {
		auditOf(c).Target = draft.Name
		secret, made, err := a.Secrets.CreateSigning(ctx, who(c).tenant, draft.Name,
			secrets.NewSigning{Secret: valueOf(draft.Secret), Ed25519: draft.Ed25519}, a.now())
		if err != nil {
			return secretError(err)
		}
		return writeJSON(c, http.StatusCreated, viewSigning(made, secret))
	})
}

// rotationDraft is a submitted rotation.
type rotationDraft struct {
	Overlap *job.Duration `json:"overlap"`
	Secret  *string       `json:"secret"`
}

// defaultOverlap is the time for which the earlier secret stays valid if a rotation has no overlap.
const defaultOverlap = 24 * time.Hour

// Check implements [job.Checker].
func (d rotationDraft) Check(invalid *job.Invalid) {
	if d.Overlap != nil && (*d.Overlap < 0 || time.Duration(*d.Overlap) > secrets.MaxOverlap) {
		invalid.Add("/overlap", fmt.Sprintf("must be a duration from 0s to %dd", secrets.MaxOverlap/(24*time.Hour)))
	}
	checkGiven(d.Secret, invalid)
}

// rotateSigningSecret makes a new secret of a name, and shows it this once. The present one stays valid for the
// overlap.
func (a *api) rotateSigningSecret(c *gin.Context) error {
	name, err := secretInPath(c, job.ValidSigningName)
	if err != nil {
		return err
	}
	return change(a, c, job.Parse[rotationDraft], func(ctx context.Context, draft rotationDraft) error {
		overlap := defaultOverlap
		if draft.Overlap != nil {
			overlap = time.Duration(*draft.Overlap)
		}
		secret, rotated, err := a.Secrets.Rotate(ctx, who(c).tenant, name, valueOf(draft.Secret), overlap, a.now())
		if err != nil {
			return secretError(err)
		}
		return writeJSON(c, http.StatusOK, viewSigning(rotated, secret))
	})
}

// deleteSigningSecret deletes a name of signing secrets with all its valid secrets.
func (a *api) deleteSigningSecret(c *gin.Context) error {
	return a.deleteNamed(c, job.ValidSigningName, a.Secrets.DeleteSigning)
}

func valueOf(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

var (
	secretRule = fmt.Sprintf("must be 1 to %d letters (a to z, A to Z), digits, dots, underscores and hyphens",
		job.MaxSecretName)
	signingRule = fmt.Sprintf("%s, and not %q", secretRule, job.NoSigning)
)

// secretInPath reads the secret's name in a path. The query must be empty.
func secretInPath(c *gin.Context, valid func(string) bool) (string, error) {
	name, err := nameInPath(c.Param("name"))
	if err != nil || !valid(name) {
		return "", &parameterError{"name", secretRule}
	}
	_, err = readQuery(c.Request)
	return name, err
}

// secretError maps the error of a change of a secret to the one for clients.
func secretError(err error) error {
	if _, missing := errors.AsType[*secrets.MissingKeyError](err); missing {
		return &statusError{http.StatusConflict, "the secret can't be decrypted: this server lacks its encryption key. " +
			"Delete it and create it anew, or have the operator add the key (--encryption-key-file)"}
	}
	switch {
	case errors.Is(err, store.ErrNotFound):
		return &statusError{http.StatusNotFound, "there is no secret of this name"}
	case errors.Is(err, secrets.ErrNoKey):
		return &statusError{http.StatusConflict, secrets.ErrNoKey.Error() + ". Have the operator make one: " +
			`"carillon secrets new-key FILE"`}
	case errors.Is(err, secrets.ErrExists):
		return &statusError{http.StatusConflict, secrets.ErrExists.Error() + "; rotate it, or delete it first"}
	case errors.Is(err, secrets.ErrOverlap), errors.Is(err, secrets.ErrBusy), errors.Is(err, secrets.ErrTooMany):
		return &statusError{http.StatusConflict, err.Error()}
	}
	return err
}

// checkSecrets refuses a callback that refers to missing secrets, or to secrets that may not be sent to its
// destination. The callback's sender has accepted it before.
func (a *api) checkSecrets(ctx context.Context, tenant string, t job.Target) error {
	references, name := a.Callbacks.References(t.Callback), t.Options.Signing
	if len(references) == 0 && (name == "" || name == job.NoSigning) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, storeTime)
	defer cancel()
	var invalid job.Invalid
	// note adds the reason that a secret can't be used, and returns any other error.
	note := func(pointer string, err error) error {
		unusable, ok := errors.AsType[*secrets.UnusableError](err)
		if !ok {
			return err
		}
		invalid.Add(pointer, unusable.Error())
		return nil
	}
	if len(references) > 0 {
		destination := a.Callbacks.Destination(t.Callback)
		for _, r := range references {
			if err := note(r.Pointer, a.Secrets.Check(ctx, tenant, r.Name, destination)); err != nil {
				return err
			}
		}
	}
	if name != "" && name != job.NoSigning {
		if err := note("/callback/signing", a.Secrets.CheckSigning(ctx, tenant, name)); err != nil {
			return err
		}
	}
	return invalid.Err()
}
