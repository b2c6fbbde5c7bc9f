package storeurl_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/carillon-scheduler/carillon/store/storeurl"
)

// schemes are those of all stores that have servers.
var schemes = []string{"mongodb", "mongodb+srv", "postgres", "postgresql", "redis", "rediss"}

func TestParts(t *testing.T) {
	for _, c := range []struct {
		url, user, password string
		hosts               []string
		path, shown         string
	}{
		{"mongodb://h", "", "", []string{"h"}, "", "mongodb://h"},
		{"mongodb+srv://u:hunter2@h/db?replicaSet=rs0", "u", "hunter2", []string{"h"}, "db", "mongodb+srv://u:***@h/db"},
		{"mongodb://u:hunter2@a:1,b:2,c/db", "u", "hunter2", []string{"a:1", "b:2", "c"}, "db", "mongodb://u:***@a:1,b:2,c/db"},
		{"postgres://u%40x:hunter2%2F%3F@[::1]:5432/d%20b", "u@x", "hunter2/?", []string{"[::1]:5432"}, "d%20b",
			"postgres://u%40x:***@[::1]:5432/d%20b"},
		{"postgresql://u@h/db?password=hunter2", "u", "", []string{"h"}, "db", "postgresql://u@h/db"},
		{"redis://:hunter2@h1:6379,h2:6379/?cluster=true", "", "hunter2", []string{"h1:6379", "h2:6379"}, "", "redis://:***@h1:6379,h2:6379"},
		{"rediss://h/3", "", "", []string{"h"}, "3", "rediss://h/3"},
		{"redis://", "", "", []string{""}, "", "redis://"},
	} {
		u, err := storeurl.Parse(c.url, schemes...)
		if err != nil {
			t.Errorf("%s: %v", c.url, err)
			continue
		}
		if u.User() != c.user || u.Password() != c.password || !slices.Equal(u.Hosts(), c.hosts) || u.Path() != c.path {
			t.Errorf("%s has the parts %q, %q, %q, %q", c.url, u.User(), u.Password(), u.Hosts(), u.Path())
		}
		if got := u.String(); got != c.shown {
			t.Errorf("of %s is shown %s, want %s", c.url, got, c.shown)
		}
	}
}

func TestOptions(t *testing.T) {
	u, err := storeurl.Parse("redis://h?prefix=a%20b&shards=4", "redis")
	if err != nil {
		t.Fatal(err)
	}
	options, err := u.Options()
	if err != nil || options.Get("prefix") != "a b" || options.Get("shards") != "4" {
		t.Errorf("the options are %v, %v", options, err)
	}
}

// TestMalformed: the error for a URL that can't be parsed shows no secret.
func TestMalformed(t *testing.T) {
	for url, want := range map[string]string{
		"":                                         "must begin with mongodb:// or mongodb+srv://",
		"hunter2":                                  "must begin with",
		"mongodb:u:hunter2@h":                      "must begin with",
		"mysql://u:hunter2@h/db":                   "must begin with",
		"u:hunter2@h":                              "must begin with",
		"host=h password=hunter2":                  "must begin with",
		"mongodb://u:x@hunter2@h/db":               "percent-encoded",
		"mongodb://u:x/hunter2@h/db":               "percent-encoded",
		"mongodb://u:hunter2?x@h/db":               "percent-encoded",
		"mongodb://u:hunter2#x@h/db":               "percent-encoded",
		"mongodb://u:hunter2%zz@h/db":              "percent-encoded",
		"mongodb://u:x:hunter2@h/db":               "percent-encoded",
		"mongodb://h/db?password=hunter2@x":        "percent-encoded",
		"mongodb://h:27017/db?password=hunter2@x":  "percent-encoded",
		"mongodb://a,b/db?tlsPassword=hunter2@x":   "percent-encoded",
		"mongodb://u@h?password=hunter2@x&name=y@": "percent-encoded",
	} {
		_, err := storeurl.Parse(url, "mongodb", "mongodb+srv")
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", url, err, want)
		}
		expectHidden(t, url, fmt.Sprint(err), fmt.Sprintf("%#v", err))
		if strings.Contains(url, "://") {
			expectHidden(t, url, storeurl.Redact(url), storeurl.Address(url))
		}
	}
	u, err := storeurl.Parse("postgres://h/db?sslpassword=hunter2&x=%zz", "postgres")
	if err != nil {
		t.Fatal(err)
	}
	_, err = u.Options()
	if err == nil || !strings.Contains(err.Error(), "percent-encoded") {
		t.Errorf("options that can't be read: %v", err)
	}
	expectHidden(t, "options", fmt.Sprint(err))
}

// secrets are URLs with the secret hunter2 in each place that may have one, encoded or not.
var secrets = []string{
	"mongodb://u:hunter2@h1:1,h2:2/db?replicaSet=rs0",
	"mongodb+srv://u:%68unter2@h",
	"mongodb://u@h/db?authMechanismProperties=AWS_SESSION_TOKEN:hunter2",
	"mongodb://u@h/db?tls=true;tlsCertificateKeyFilePassword=hunter2",
	"postgres://u:hunter2@h/db?sslmode=require",
	"postgres://u:hunter2@h1:5432,h2:5433/db",
	"postgres://u@h/db?password=hunter2",
	"postgres://u@h/db?PassWord=%68unter2&x=y",
	"postgresql://u@h/db?sslmode=verify-full&ssl%70assword=hunter2",
	"redis://:hunter2@h:6379/0",
	"rediss://u:hunter2@h1,h2?cluster=true",
	"redis://h?access_token=hunter2&client_secret=hunter2",
}

// TestNoSecretIsShown: a URL that is printed, logged, encoded or part of an error shows no secret.
func TestNoSecretIsShown(t *testing.T) {
	for _, url := range secrets {
		u, err := storeurl.Parse(url, schemes...)
		if err != nil {
			t.Errorf("%s: %v", url, err)
			continue
		}
		encoded, err := json.Marshal(map[string]any{"url": u, "pointer": &u})
		if err != nil {
			t.Errorf("%s: %v", url, err)
		}
		var log bytes.Buffer
		slog.New(slog.NewTextHandler(&log, nil)).Info("x", "url", u, "pointer", &u)
		slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "url", u, "pointer", &u)
		cause := errors.New(`cannot parse "` + url + `": it has hunter2, or "%68unter2"`)
		fault := u.Fault(cause)
		if !errors.Is(fault, cause) || !strings.Contains(fault.Error(), "cannot parse") {
			t.Errorf("%s: the fault is %v", url, fault)
		}
		expectHidden(t, url, u.String(), fmt.Sprint(u), fmt.Sprintf("%s %v %+v %#v %q", u, u, u, u, u),
			fmt.Sprintf("%v %+v %#v", struct{ U storeurl.URL }{u}, []storeurl.URL{u}, &u),
			string(encoded), log.String(), strings.ReplaceAll(fault.Error(), "%68unter2", ""),
			u.Faultf("it has %s", "hunter2").Error(), storeurl.Redact(url), storeurl.Address(url))
	}
}

// TestRedact and TestAddress check the URLs that logs and exports show.
func TestRedact(t *testing.T) {
	for url, want := range map[string][2]string{
		"sqlite:/var/lib/carillon@home.db":                       {"sqlite:/var/lib/carillon@home.db", "sqlite:/var/lib/carillon@home.db"},
		"sqlite:///var/lib/a?b.db":                               {"sqlite:///var/lib/a?b.db", "sqlite:///var/lib/a?b.db"},
		"memory:":                                                {"memory:", "memory:"},
		"postgres://host/db":                                     {"postgres://host/db", "postgres://host/db"},
		"postgres://user:hunter2@host1:1,host2:2/db":             {"postgres://user:***@host1:1,host2:2/db", "postgres://host1:1,host2:2/db"},
		"postgres://user@host/db?password=hunter2&sslmode=allow": {"postgres://user@host/db", "postgres://host/db"},
		"mongodb://user:p%40ss@h1:27017,h2:27017/db?authMechanismProperties=X:y": {
			"mongodb://user:***@h1:27017,h2:27017/db", "mongodb://h1:27017,h2:27017/db"},
		"mongodb+srv://user:hunter2@host":               {"mongodb+srv://user:***@host", "mongodb+srv://host"},
		"redis://:hunter2@h1:6379,h2:6379?cluster=true": {"redis://:***@h1:6379,h2:6379", "redis://h1:6379,h2:6379"},
	} {
		if got := storeurl.Redact(url); got != want[0] {
			t.Errorf("of %s is logged %s, want %s", url, got, want[0])
		}
		if got := storeurl.Address(url); got != want[1] {
			t.Errorf("of %s is written down %s, want %s", url, got, want[1])
		}
	}
}

func expectHidden(t *testing.T, url string, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if strings.Contains(text, "hunter2") || strings.Contains(text, "%68unter2") {
			t.Errorf("of %s is shown %s", url, text)
		}
	}
}

// TestHideShortPassword: a password of one letter is hidden in a quoted URL, and the rest of the text stays legible.
func TestHideShortPassword(t *testing.T) {
	u, err := storeurl.Parse("redis://u:p@h", "redis")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := u.Hide(`can't parse "redis://u:p@h"`), `can't parse "redis://u:***@h"`; got != want {
		t.Errorf("it is %s, want %s", got, want)
	}
}
