package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/carillon-scheduler/carillon/access"
	"github.com/carillon-scheduler/carillon/access/limits"
	"github.com/carillon-scheduler/carillon/audit"
	"github.com/carillon-scheduler/carillon/cmd/internal/cli"
	"github.com/carillon-scheduler/carillon/cmd/internal/service"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

const (
	keysCreateHelp = "Create an API key in a store, and print it: the first one needs no running service. It can't be " +
		"shown again. See docs/access.md."
	keysListHelp   = "List the API keys of a store, without their secrets."
	keysRotateHelp = "Give an API key another secret, and print the new key. The one that it replaces is valid for the " +
		"--overlap."
	keysRevokeHelp = "Revoke an API key. Replicas that run refuse it within 5 s."
	keysCopyHelp   = "Copy all API keys of a store to another one: an export has none. They stay valid. Keys that " +
		"the other store has already are skipped."
)

// keysStore is the option --store of a command about keys.
type keysStore string

func (s *keysStore) flag(f *flag.FlagSet) {
	f.StringVar((*string)(s), "store", "", "`URL`: The store that has the keys, as for serve.")
}

// open opens the store, and returns its keys and a function that closes both.
func (s *keysStore) open(
	ctx context.Context, opened func(context.Context, string) (store.Store, error),
) (*access.Keys, func() error, error) {
	url := string(*s)
	if url == "" {
		return nil, nil, cli.Usagef("--store is missing: name the store, as for serve")
	}
	if service.Alone(url) {
		return nil, nil, cli.Usagef("--store: %q is the memory of one process, which no other can reach: this command can't "+
			"add keys to it", url)
	}
	st, err := opened(ctx, url)
	if err != nil {
		return nil, nil, fmt.Errorf("--store: %w", err)
	}
	keys := access.NewKeys(st)
	return keys, func() error { return errors.Join(keys.Close(), st.Close()) }, nil
}

// keysCreateCommand creates a key.
type keysCreateCommand struct {
	store     keysStore
	role      string
	tenants   []string
	prefix    string
	expiresIn time.Duration
	expiresAt string
	note      string
	limits    limits.Draft
}

// Flags declares the options.
func (c *keysCreateCommand) Flags(f *flag.FlagSet) {
	c.store.flag(f)
	f.StringVar(&c.role, "role", "", "`ROLE`: The key's role. "+
		"viewer: read; submitter: also put, change and cancel jobs; operator: also everything else except keys; "+
		"admin: also keys.")
	cli.List(f, &c.tenants, "tenant", "`NAMES`: The key's tenants, with commas between them, or as a repeated option; "+
		"all tenants without it.")
	f.Func("key-prefix", "`PREFIX`: The required beginning of its jobs' keys.", bound(&c.prefix))
	f.Func("expires-in", "`DURATION`: Time for which it is valid; without an end if neither this nor --expires-at is "+
		"given.",
		func(s string) error {
			d, err := job.ParseDuration(s)
			if c.expiresIn = time.Duration(d); err == nil && d == 0 {
				err = errors.New("must be more than zero; leave it out for a key without an end")
			}
			return err
		})
	f.Func("expires-at", "`INSTANT`: End of its validity, such as 2027-01-01T00:00:00Z.", bound(&c.expiresAt))
	f.StringVar(&c.note, "note", "", "`TEXT`: The key's purpose.")
	f.Func("limits", "`JSON`: Its own limits, such as {\"maxJobs\": 1000, \"requestsPerSecond\": 20}. See docs/limits.md.",
		func(s string) (err error) {
			c.limits, err = limits.ParseDraft([]byte(s))
			return err
		})
}

// Run creates the key. Standard output has its token and nothing else.
func (c *keysCreateCommand) Run(ctx context.Context, in cli.Input, line *audit.Entry) (err error) {
	now := time.Now().Truncate(time.Millisecond)
	p, err := c.params(now)
	if err != nil {
		return cli.Usage(err)
	}
	keys, closeAll, err := c.store.open(ctx, service.OpenStore)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeAll()) }()
	token, key, err := keys.Create(ctx, p, "carillon keys create", now)
	if err != nil {
		return err
	}
	line.Target = key.ID
	fmt.Fprintf(in.Stderr, "key %s: %s of %s. It is not shown again.\n", key.ID, key.Role, tenantsText(key.Scope))
	_, err = fmt.Fprintln(in.Stdout, token)
	return err
}

// bound returns the setter of an option that narrows a key. An empty value, as of a variable that a script has not set,
// would make a key that may do more than was meant.
func bound(p *string) func(string) error {
	return func(s string) error {
		if s == "" {
			return errors.New("must not be empty; leave it out for a key without that bound")
		}
		*p = s
		return nil
	}
}

// params returns the parameters of the key in the options.
func (c *keysCreateCommand) params(now time.Time) (p access.KeyParams, err error) {
	if c.role == "" {
		return p, errors.New("--role is missing: one of viewer, submitter, operator, admin")
	}
	p = access.KeyParams{Role: access.Role(c.role), Scope: access.Everything(), Note: c.note, Limits: c.limits}
	p.Scope.KeyPrefix = c.prefix
	if len(c.tenants) > 0 {
		p.Scope.Tenants = c.tenants
	}
	switch {
	case c.expiresIn != 0 && c.expiresAt != "":
		return p, errors.New("--expires-in and --expires-at are both given; give one of them")
	case c.expiresIn != 0:
		p.ExpiresAt = now.Add(c.expiresIn)
	case c.expiresAt != "":
		if p.ExpiresAt, err = job.ParseInstant(c.expiresAt); err != nil {
			return p, fmt.Errorf("--expires-at: %w", err)
		}
	}
	return p, inOptions(p.Check(now))
}

// inOptions returns an error of fields as an error of the first field's option.
func inOptions(err error) error {
	invalid, ok := errors.AsType[*job.Invalid](err)
	if !ok {
		return err
	}
	field := invalid.Fields[0]
	for pointer, option := range map[string]string{
		"/role": "role", "/tenants": "tenant", "/keyPrefix": "key-prefix", "/expiresAt": "expires-at", "/note": "note",
		"/overlap": "overlap", "/limits": "limits",
	} {
		if field.Pointer == pointer || strings.HasPrefix(field.Pointer, pointer+"/") {
			return fmt.Errorf("--%s: %s", option, field.Message)
		}
	}
	return err
}

// keysListCommand lists keys.
type keysListCommand struct{ store keysStore }

// Flags declares the options.
func (c *keysListCommand) Flags(f *flag.FlagSet) { c.store.flag(f) }

// Run prints a heading and a line for each key.
func (c *keysListCommand) Run(ctx context.Context, in cli.Input) (err error) {
	keys, closeAll, err := c.store.open(ctx, service.OpenExisting)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeAll()) }()
	const page = 1000
	w := tabwriter.NewWriter(in.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ID\tROLE\tTENANTS\tKEY PREFIX\tCREATED\tEXPIRES\tLAST USED\tNOTE")
	for after := ""; ; {
		all, err := keys.List(ctx, after, page)
		if err != nil {
			return err
		}
		for _, k := range all {
			expires := timeText(k.ExpiresAt)
			if k.Expired(time.Now()) {
				expires = "expired"
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", k.ID, k.Role, strings.Join(k.Scope.Tenants, ","),
				cmp.Or(k.Scope.KeyPrefix, "-"), timeText(k.CreatedAt), expires, timeText(k.LastUsed), cmp.Or(k.Note, "-"))
			after = k.ID
		}
		if len(all) < page {
			return w.Flush()
		}
	}
}

// timeText returns a time to the minute.
func timeText(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format("2006-01-02T15:04Z")
}

// tenantsText returns the tenants of a scope as text.
func tenantsText(s access.Scope) string {
	if s.All() {
		return "all tenants"
	}
	return strings.Join(s.Tenants, ", ")
}

// keysRotateCommand gives a key another secret.
type keysRotateCommand struct {
	store   keysStore
	overlap time.Duration
}

// Flags declares the options.
func (c *keysRotateCommand) Flags(f *flag.FlagSet) {
	c.store.flag(f)
	cli.Duration(f, &c.overlap, "overlap", 24*time.Hour,
		"`DURATION`: Time for which the replaced key stays valid, up to 30d; 0s ends it at once.")
}

// Run rotates the key. Standard output has its new token and nothing else.
func (c *keysRotateCommand) Run(ctx context.Context, in cli.Input, line *audit.Entry) (err error) {
	id, err := keyID(in)
	if err != nil {
		return err
	}
	line.Target = id
	keys, closeAll, err := c.store.open(ctx, service.OpenExisting)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeAll()) }()
	token, key, err := keys.Rotate(ctx, id, c.overlap, time.Now().Truncate(time.Millisecond))
	if err != nil {
		return explainKey(id, err)
	}
	fmt.Fprintf(in.Stderr, "key %s: the replaced one is valid until %s. The new one is not shown again.\n", key.ID,
		job.FormatTime(key.OldValidUntil))
	_, err = fmt.Fprintln(in.Stdout, token)
	return err
}

// keysRevokeCommand revokes a key.
type keysRevokeCommand struct{ store keysStore }

// Flags declares the options.
func (c *keysRevokeCommand) Flags(f *flag.FlagSet) { c.store.flag(f) }

// Run revokes the key.
func (c *keysRevokeCommand) Run(ctx context.Context, in cli.Input, line *audit.Entry) (err error) {
	id, err := keyID(in)
	if err != nil {
		return err
	}
	line.Target = id
	keys, closeAll, err := c.store.open(ctx, service.OpenExisting)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeAll()) }()
	if err := keys.Revoke(ctx, id, time.Now().Truncate(time.Millisecond)); err != nil {
		return explainKey(id, err)
	}
	fmt.Fprintf(in.Stderr, "key %s is revoked\n", id)
	return nil
}

// keyID returns the id in a command's argument. It also accepts a whole key, since that is at hand after a leak.
func keyID(in cli.Input) (string, error) {
	if len(in.Arguments) != 1 {
		return "", cli.Usagef("name one key by its id, as \"carillon keys list\" shows it")
	}
	id := in.Arguments[0]
	if of, ok := access.ParseToken(id); ok {
		return of, nil
	}
	if !access.ValidKeyID(id) {
		return "", cli.Usagef("%d characters that are not the id of a key; \"carillon keys list\" shows the ids", len(id))
	}
	return id, nil
}

// noKeyError is the id of a key that does not exist.
type noKeyError string

func (id noKeyError) Error() string {
	return fmt.Sprintf("there is no key %s; \"carillon keys list\" shows all keys", string(id))
}

func (noKeyError) Is(target error) bool { return target == store.ErrNotFound }

// explainKey adds advice to an error.
func explainKey(id string, err error) error {
	if errors.Is(err, store.ErrNotFound) {
		return noKeyError(id)
	}
	if _, ok := errors.AsType[*job.Invalid](err); ok {
		return cli.Usage(inOptions(err))
	}
	return err
}
