package main

import (
	"context"
	"errors"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/access"
	"github.com/carillon-scheduler/carillon/cmd/internal/cli"
	"github.com/carillon-scheduler/carillon/store"
)

// whose returns the principal of a token.
func whose(t *testing.T, url, token string) (p access.Principal, err error) {
	t.Helper()
	onStore(t, url, func(s store.Store) {
		keys := access.NewKeys(s)
		defer keys.Close()
		p, err = keys.Authenticate(context.WithoutCancel(t.Context()), token, time.Now())
	})
	return p, err
}

func TestKeysCommands(t *testing.T) {
	url := "sqlite:" + filepath.Join(t.TempDir(), "keys.db") // it is made with the first key
	create := func(args ...string) string {
		t.Helper()
		stdout, _ := carillon(t, 0, append([]string{"keys", "create", "--store=" + url}, args...)...)
		token := strings.TrimSuffix(stdout, "\n")
		if _, ok := access.ParseToken(token); !ok {
			t.Fatalf("standard output has %q, want a key and nothing else", stdout)
		}
		return token
	}
	admin := create("--role=admin")
	mailer := create("--role=submitter", "--tenant=acme,bolt", "--tenant=corp", "--key-prefix=mail/", "--expires-in=2h",
		"--note=the mailer's", `--limits={"maxJobs": 5}`)
	p, err := whose(t, url, admin)
	if err != nil || p.Role != access.Admin || !p.Scope.All() || p.Scope.KeyPrefix != "" {
		t.Errorf("the first key is of %+v, %v", p, err)
	}
	p, err = whose(t, url, mailer)
	if err != nil || p.Role != access.Submitter || strings.Join(p.Scope.Tenants, " ") != "acme bolt corp" || p.Scope.KeyPrefix != "mail/" || p.Limits.MaxJobs == nil || *p.Limits.MaxJobs != 5 {
		t.Errorf("the second key is of %+v, %v", p, err)
	}

	list, _ := carillon(t, 0, "keys", "list", "--store="+url)
	for _, line := range []string{
		`(?m)^ID +ROLE +TENANTS +KEY PREFIX +CREATED +EXPIRES +LAST USED +NOTE$`,
		`(?m)^\w{12} +admin +\* +- +\S+Z +- +\S+ +-$`,
		`(?m)^` + p.ID + ` +submitter +acme,bolt,corp +mail/ +\S+Z +\S+Z +\S+ +the mailer's$`,
	} {
		if !regexp.MustCompile(line).MatchString(list) {
			t.Errorf("the list has no line %s:\n%s", line, list)
		}
	}
	if strings.Contains(list, admin[len(admin)-36:]) || strings.Contains(list, mailer[len(mailer)-36:]) {
		t.Errorf("the list has a secret:\n%s", list)
	}

	stdout, _ := carillon(t, 0, "keys", "rotate", p.ID, "--store="+url, "--overlap=0s")
	next := strings.TrimSuffix(stdout, "\n")
	if q, err := whose(t, url, next); err != nil || q.ID != p.ID {
		t.Errorf("the rotated key is of %+v, %v", q, err)
	}
	if _, err := whose(t, url, mailer); !errors.Is(err, access.ErrUnauthenticated) {
		t.Errorf("the one before: %v", err)
	}
	stdout, stderr := carillon(t, 0, "keys", "revoke", next, "--store="+url) // the key itself will do for its id
	if stdout != "" || !strings.Contains(stderr, p.ID+" is revoked") {
		t.Errorf("%q, %q", stdout, stderr)
	}
	if _, err := whose(t, url, next); !errors.Is(err, access.ErrUnauthenticated) {
		t.Errorf("the revoked one: %v", err)
	}
	for _, verb := range []string{"revoke", "rotate"} {
		if _, stderr := carillon(t, cli.ExitFailure, "keys", verb, p.ID, "--store="+url); !strings.Contains(stderr, "there is no key "+p.ID) {
			t.Errorf("%s of one that is revoked: %s", verb, stderr)
		}
	}
	if _, err := whose(t, url, admin); err != nil {
		t.Errorf("the other one: %v", err)
	}
	to := "sqlite:" + filepath.Join(t.TempDir(), "to.db")
	if _, stderr := carillon(t, 0, "keys", "copy", "--store="+url, "--to="+to); !strings.Contains(stderr, "copied: 1 keys; there already: 0") {
		t.Errorf("the copy says %s", stderr)
	}
	if p, err := whose(t, to, admin); err != nil || p.Role != access.Admin {
		t.Errorf("the copied key is of %+v, %v", p, err)
	}
}
