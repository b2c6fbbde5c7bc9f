package service

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon/access"
	"github.com/carillon-scheduler/carillon/access/oidc"
	"github.com/carillon-scheduler/carillon/cmd/internal/cli"
)

// Access has the options for authentication.
type Access struct {
	Auth                         string
	InsecureNoAuthBeyondLoopback bool

	OIDCIssuer, OIDCAudience        string
	OIDCRoleClaim, OIDCTenantsClaim string
}

// The values of [Access.Auth].
const (
	authNone = "none"
	authKeys = "keys"
)

// Flags declares the options, and sets them to their defaults.
func (o *Access) Flags(f *flag.FlagSet) {
	cli.Choice(f, &o.Auth, "auth", []string{authNone, authKeys},
		"`MODE`: keys requires an API key in every request, see docs/access.md. none lets every client do "+
			"everything: it is accepted if --listen is an address that only this machine reaches.")
	f.BoolVar(&o.InsecureNoAuthBeyondLoopback, "insecure-no-auth-beyond-loopback", false,
		"Accept --auth=none with any --listen: every client may do everything. For networks of which all "+
			"members are trusted.")
	cli.Text(f, &o.OIDCIssuer, "oidc-issuer",
		"`URL`: With --auth=keys, accept tokens (JWTs) of this OpenID Connect issuer too.")
	cli.Text(f, &o.OIDCAudience, "oidc-audience", "`NAME`: The audience that these tokens must have.")
	f.StringVar(&o.OIDCRoleClaim, "oidc-role-claim", "carillon_role",
		"`CLAIM`: The claim with a token's role, or with a list, whose strongest role counts. A nested claim has "+
			"dots, as in realm_access.roles.")
	f.StringVar(&o.OIDCTenantsClaim, "oidc-tenants-claim", "carillon_tenants",
		"`CLAIM`: The claim with a token's tenants: a name, a list of names, or * for all.")
}

// check checks the options; loopback reports that only this machine reaches the service.
func (o *Access) check(loopback bool, store string) error {
	keys, issuer := o.Auth == authKeys, o.OIDCIssuer != ""
	switch {
	case !keys && !loopback && !o.InsecureNoAuthBeyondLoopback:
		return errors.New("--listen is an address that other machines reach, and --auth=none would let all of " +
			"them do everything. Give --auth=keys, and create the first key by \"carillon keys create --store=URL " +
			"--role=admin\"; or listen at 127.0.0.1; or, if all who reach the port may do everything, give " +
			"--insecure-no-auth-beyond-loopback")
	case keys && o.InsecureNoAuthBeyondLoopback:
		return errors.New("--insecure-no-auth-beyond-loopback is for --auth=none; leave it out with --auth=keys")
	case !keys && (issuer || o.OIDCAudience != ""):
		return errors.New("--oidc-issuer and --oidc-audience need --auth=keys")
	case !issuer && o.OIDCAudience != "":
		return errors.New("--oidc-audience needs --oidc-issuer")
	case issuer:
		if err := o.oidc(nil).Check(); err != nil {
			return fmt.Errorf("--oidc-%w", err) // it begins with the option's name
		}
	case keys && Alone(store):
		return fmt.Errorf("--auth=keys: the store %s is the memory of this process, so no command can create a key "+
			"in it; use another store", store)
	}
	return nil
}

// authenticator returns the authenticator of tokens; nil for --auth=none.
func (o *Access) authenticator(keys *access.Keys, log *slog.Logger) (access.Authenticator, error) {
	if o.Auth != authKeys {
		return nil, nil
	}
	if o.OIDCIssuer == "" {
		return keys, nil
	}
	tokens, err := oidc.New(*o.oidc(log))
	if err != nil {
		return nil, err
	}
	return &keysAndTokens{keys, tokens}, nil
}

// oidc returns the configuration of the issuer whose tokens are accepted beside keys.
func (o *Access) oidc(log *slog.Logger) *oidc.Config {
	return &oidc.Config{
		Issuer: o.OIDCIssuer, Audience: o.OIDCAudience, RoleClaim: o.OIDCRoleClaim, TenantsClaim: o.OIDCTenantsClaim,
		Logger: log,
	}
}

// keysAndTokens distinguishes API keys from other tokens.
type keysAndTokens struct{ keys, tokens access.Authenticator }

// of returns the authenticator for a token.
func (a *keysAndTokens) of(token string) access.Authenticator {
	if strings.HasPrefix(token, access.TokenPrefix) {
		return a.keys
	}
	return a.tokens
}

// Authenticate implements [access.Authenticator].
func (a *keysAndTokens) Authenticate(ctx context.Context, token string, now time.Time) (access.Principal, error) {
	return a.of(token).Authenticate(ctx, token, now)
}

// Knows implements [access.Authenticator].
func (a *keysAndTokens) Knows(token string, now time.Time) bool { return a.of(token).Knows(token, now) }
