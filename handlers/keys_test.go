package handlers_test

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/access"
	"github.com/carillon-scheduler/carillon/audit"
	"github.com/carillon-scheduler/carillon/handlers"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// apiKey is a key in the form of the answer.
type apiKey struct {
	ID, Key, Role, KeyPrefix, Note, CreatedBy      string
	CreatedAt, ExpiresAt, RotatedAt, OldValidUntil string
	LastUsed                                       string
	Tenants                                        []string
}

func shows(token string) string { return "Authorization: Bearer " + token }

// TestKeysLife: a key is made, shown once, used, rotated with an overlap, and revoked.
func TestKeysLife(t *testing.T) {
	t.Parallel()
	a := newKeyedAPI(t)
	admin := a.key(access.Admin, "", "*")
	made := a.call("POST", "/v1/keys", `{"role":"submitter","tenants":["acme"],"keyPrefix":"mail/","expiresAt":"2030-01-03T00:00:00Z","note":"the mailer"}`, admin).want(201)
	key := decode[apiKey](made)
	id, ok := access.ParseToken(key.Key)
	adminID, _ := access.ParseToken(strings.TrimPrefix(admin, "Authorization: Bearer "))
	if !ok || key.ID != id || made.header.Get("Location") != "/v1/keys/"+id || made.header.Get("Cache-Control") != "no-store" {
		t.Errorf("it is answered with %q and %s", made.header, made.body)
	}
	want := fmt.Sprintf(`"role":"submitter","tenants":["acme"],"keyPrefix":"mail/","note":"the mailer","createdBy":%q,"createdAt":%q,"expiresAt":"2030-01-03T00:00:00.000Z"`, adminID, at(0))
	if got := string(made.body); got != fmt.Sprintf(`{"id":%q,"key":%q,%s}`, id, key.Key, want) {
		t.Errorf("it is made as %s", got)
	}
	read := a.call("GET", "/v1/keys/"+id, "", admin).want(200)
	if got := string(read.body); got != fmt.Sprintf(`{"id":%q,%s}`, id, want) || read.header.Get("Cache-Control") != "no-store" {
		t.Errorf("it is read as %s", got)
	}

	a.call("PUT", "/v1/jobs/mail%2F1", body("mail/1", time.Hour), shows(key.Key)).want(201)
	a.call("PUT", "/v1/jobs/news%2F1", body("news/1", time.Hour), shows(key.Key)).want(403)
	a.call("GET", "/v1/keys", "", shows(key.Key)).want(403)

	a.advance(time.Minute)
	rotated := a.call("POST", "/v1/keys/"+id+"/rotate", `{"overlap":"1h"}`, admin).want(200)
	second := decode[apiKey](rotated)
	if second.ID != id || second.Key == key.Key || second.OldValidUntil != at(time.Hour+time.Minute) || second.RotatedAt != at(time.Minute) || rotated.header.Get("Cache-Control") != "no-store" {
		t.Errorf("it is rotated to %s", rotated.body)
	}
	use := func(key string) int { return a.call("GET", "/v1/jobs", "", shows(key)).status }
	if use(key.Key) != 200 || use(second.Key) != 200 {
		t.Error("while they overlap, one of the keys is refused")
	}
	a.advance(time.Hour)
	if use(key.Key) != 401 || use(second.Key) != 200 {
		t.Error("after the overlap the old key is taken, or the new one is not")
	}
	third := decode[apiKey](a.call("POST", "/v1/keys/"+id+"/rotate", `{"overlap":"0s"}`, admin).want(200))
	if use(second.Key) != 401 || use(third.Key) != 200 {
		t.Error("without an overlap the old key is taken, or the new one is not")
	}
	if gone := a.call("DELETE", "/v1/keys/"+id, "", admin).want(204); gone.header.Get("Cache-Control") != "no-store" || use(third.Key) != 401 {
		t.Error("it is taken after it was revoked")
	}
	for _, request := range [][3]string{{"GET", "", ""}, {"DELETE", "", ""}, {"POST", "/rotate", `{"overlap":"1h"}`}} {
		a.call(request[0], "/v1/keys/"+id+request[1], request[2], admin).want(404)
	}
	if log := a.log.String(); strings.Contains(log, "carillon_") {
		t.Errorf("a key is logged: %s", log)
	}
}

// TestKeysWithoutKeys: the first keys are made without authentication.
func TestKeysWithoutKeys(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	key := decode[apiKey](a.call("POST", "/v1/keys", `{"role":"admin","tenants":["*"]}`).want(201))
	if key.CreatedBy != access.Anyone().ID {
		t.Errorf("it was made by %q", key.CreatedBy)
	}
	if listed := decode[struct{ Items []apiKey }](a.call("GET", "/v1/keys", "").want(200)).Items; len(listed) != 1 || listed[0].ID != key.ID || listed[0].Key != "" {
		t.Errorf("it is listed as %+v", listed)
	}
}

// TestKeysThatAreRefused names the fields at fault.
func TestKeysThatAreRefused(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	id := decode[apiKey](a.call("POST", "/v1/keys", `{"role":"viewer","tenants":["acme"]}`).want(201)).ID
	rotate := "/v1/keys/" + id + "/rotate"
	for _, c := range []struct {
		path, body string
		status     int
		named      []string
	}{
		{"/v1/keys", ``, 415, nil},
		{"/v1/keys", `{`, 400, nil},
		{"/v1/keys", `{}`, 422, []string{"/role", "/tenants"}},
		{"/v1/keys", `{"role":"root","tenants":["*","a b"],"keyPrefix":"\u0000","expiresAt":"2029-01-01T00:00:00Z","note":"\u0007"}`, 422, []string{"/role", "/tenants/0", "/tenants/1", "/keyPrefix", "/expiresAt", "/note"}},
		{"/v1/keys", `{"role":"viewer","tenants":["a"],"expiresAt":"tomorrow"}`, 422, []string{"/expiresAt"}},
		{"/v1/keys", `{"role":"viewer","tenants":["a"],"id":"x"}`, 422, []string{"/id"}},
		{"/v1/keys?x=1", `{"role":"viewer","tenants":["a"]}`, 422, []string{"?x"}},
		{rotate, ``, 415, nil},
		{rotate, `{}`, 422, []string{"/overlap"}},
		{rotate, `{"overlap":"-1h"}`, 422, []string{"/overlap"}},
		{rotate, `{"overlap":"31d"}`, 422, []string{"/overlap"}},
		{rotate, `{"overlap":"1h","role":"admin"}`, 422, []string{"/role"}},
		{"/v1/keys/none/rotate", `{"overlap":"1h"}`, 404, nil},
	} {
		got := a.call("POST", c.path, c.body).want(c.status)
		if named := got.problem().named(); !slices.Equal(named, c.named) {
			t.Errorf("%s %s: it names %q, want %q", c.path, c.body, named, c.named)
		}
	}
	for _, query := range []string{"?limit=0", "?cursor=%21", "?tenant=acme"} {
		a.call("GET", "/v1/keys"+query, "").want(422)
	}
	a.call("DELETE", "/v1/keys/"+id, "", "If-Match: *").want(400)
}

// TestNoKeyGivesMoreThanItHas: the administrator of a part can neither make a key for more than that, nor see, rotate
// or revoke one.
func TestNoKeyGivesMoreThanItHas(t *testing.T) {
	t.Parallel()
	a := newKeyedAPI(t)
	root := a.key(access.Admin, "", "*")
	of := func(role, prefix string, tenants ...string) string {
		return encode(map[string]any{"role": role, "keyPrefix": prefix, "tenants": tenants})
	}
	for _, c := range []struct {
		by   string
		made string
		may  bool
	}{
		{a.key(access.Admin, "", "acme"), of("admin", "", "acme"), true},
		{a.key(access.Admin, "", "acme"), of("viewer", "mail/", "acme"), true},
		{a.key(access.Admin, "", "acme"), of("viewer", "", "bolt"), false},
		{a.key(access.Admin, "", "acme"), of("viewer", "", "acme", "bolt"), false},
		{a.key(access.Admin, "", "acme"), of("viewer", "", "*"), false},
		{a.key(access.Admin, "", "acme", "bolt"), of("viewer", "", "bolt"), true},
		{a.key(access.Admin, "mail/", "acme"), of("viewer", "mail/", "acme"), true},
		{a.key(access.Admin, "mail/", "acme"), of("viewer", "mail/news/", "acme"), true},
		{a.key(access.Admin, "mail/", "acme"), of("viewer", "mail", "acme"), false},
		{a.key(access.Admin, "mail/", "acme"), of("viewer", "", "acme"), false},
		{a.key(access.Admin, "mail/", "*"), of("viewer", "mail/", "bolt"), true},
		{a.key(access.Admin, "mail/", "*"), of("viewer", "", "bolt"), false},
	} {
		status, listed := 403, 0
		if c.may {
			status, listed = 201, 1
		}
		a.call("POST", "/v1/keys", c.made, c.by).want(status)
		id := decode[apiKey](a.call("POST", "/v1/keys", c.made, root).want(201)).ID
		found := 0
		for _, k := range decode[struct{ Items []apiKey }](a.call("GET", "/v1/keys?limit=1000", "", c.by).want(200)).Items {
			if k.ID == id {
				found++
			}
		}
		if found != listed {
			t.Errorf("%s is listed: %d, want %d", c.made, found, listed)
		}
		seen := map[bool]int{true: 200, false: 404}[c.may]
		a.call("GET", "/v1/keys/"+id, "", c.by).want(seen)
		a.call("POST", "/v1/keys/"+id+"/rotate", `{"overlap":"1h"}`, c.by).want(seen)
		a.call("DELETE", "/v1/keys/"+id, "", c.by).want(map[bool]int{true: 204, false: 404}[c.may])
	}
	a.call("GET", "/v1/keys", "", root).want(200)
}

// TestNoKeyGivesTokensThatOutliveIt: neither by creation nor by rotation.
func TestNoKeyGivesTokensThatOutliveIt(t *testing.T) {
	t.Parallel()
	a := newKeyedAPI(t)
	root := a.key(access.Admin, "", "*")
	end := start.Add(time.Hour)
	expiring := "Authorization: Bearer " + a.token(access.KeyParams{
		Role: access.Admin, Scope: access.Scope{Tenants: []string{"*"}}, ExpiresAt: end,
	})
	for expires, may := range map[string]bool{
		"": false, job.FormatTime(end.Add(time.Millisecond)): false, job.FormatTime(end): true, job.FormatTime(end.Add(-time.Minute)): true,
	} {
		draft := map[string]any{"role": "viewer", "tenants": []string{"acme"}}
		if expires != "" {
			draft["expiresAt"] = expires
		}
		created, rotated := 403, 403
		if may {
			created, rotated = 201, 200
		}
		a.call("POST", "/v1/keys", encode(draft), expiring).want(created)
		id := decode[apiKey](a.call("POST", "/v1/keys", encode(draft), root).want(201)).ID
		a.call("POST", "/v1/keys/"+id+"/rotate", `{"overlap":"1h"}`, expiring).want(rotated)
		a.call("DELETE", "/v1/keys/"+id, "", expiring).want(204)
	}
}

// TestPagesOfKeys: each key is on one page, and no cursor names one that can't be seen.
func TestPagesOfKeys(t *testing.T) {
	t.Parallel()
	a := newKeyedAPI(t)
	root, part := a.key(access.Admin, "", "*"), a.key(access.Admin, "", "acme")
	var theirs, others []string
	for i := range 30 {
		tenant := []string{"acme", "bolt", "*"}[i%3]
		_, key, err := a.keys.Create(t.Context(), access.KeyParams{Role: access.Viewer, Scope: access.Scope{Tenants: []string{tenant}}}, "anyone", start)
		if err != nil {
			t.Fatal(err)
		}
		if tenant == "acme" {
			theirs = append(theirs, key.ID)
		} else {
			others = append(others, key.ID)
		}
	}
	ids := func(by string) (ids []string) {
		for cursor := ""; ; {
			page := decode[struct {
				Items      []apiKey
				NextCursor string
			}](a.call("GET", "/v1/keys?limit=3"+cursor, "", by).want(200))
			for _, k := range page.Items {
				ids = append(ids, k.ID)
			}
			if cursor = "&cursor=" + page.NextCursor; page.NextCursor == "" {
				return ids
			}
			if len(page.Items) != 3 {
				t.Errorf("a page with others behind it has %d keys", len(page.Items))
			}
		}
	}
	own, _ := access.ParseToken(strings.TrimPrefix(part, "Authorization: Bearer "))
	theirs = append(theirs, own)
	slices.Sort(theirs)
	if got := ids(part); !slices.Equal(got, theirs) {
		t.Errorf("who administers a part sees %q, want %q", got, theirs)
	}
	if got := ids(root); len(got) != len(theirs)+len(others)+1 || !slices.IsSorted(got) {
		t.Errorf("who administers all sees %d keys", len(got))
	}
}

// TestKeyPrefixBounds: a key with a prefix in its scope finds, counts and changes only jobs with that prefix, by any
// request.
func TestKeyPrefixBounds(t *testing.T) {
	t.Parallel()
	a := newKeyedAPI(t, withEvents)
	all, part := a.key(access.Operator, "", "acme"), a.key(access.Operator, "mail/", "acme")
	for _, key := range []string{"mail", "mail/1", "mail/2", "mail0", "mai/1", "Mail/1", "zzz"} {
		a.call("POST", "/v1/jobs", body(key, time.Hour), all).want(201)
	}
	keys := func(path, by string) string {
		var keys []string
		for _, item := range decode[struct{ Items []struct{ Key string } }](a.call("GET", path, "", by).want(200)).Items {
			keys = append(keys, item.Key)
		}
		return strings.Join(keys, " ")
	}
	for path, want := range map[string]string{
		"": "mail/1 mail/2", "?prefix=": "mail/1 mail/2", "?prefix=m": "mail/1 mail/2", "?prefix=mail/": "mail/1 mail/2", "?prefix=mail/2": "mail/2",
		"?prefix=zzz": "", "?prefix=mail0": "", "?prefix=Mail/": "", "?state=scheduled": "mail/1 mail/2", "?limit=1": "mail/1",
	} {
		if got := keys("/v1/jobs"+path, part); got != want {
			t.Errorf("%q lists %q, want %q", path, got, want)
		}
	}
	a.call("PUT", "/v1/tenants/acme", `{"weight":3,"events":{"callback":{"type":"kafka","data":{"x":"hidden"}}}}`, all).want(200)
	for _, path := range []string{"/v1/tenants", "/v1/tenants/acme"} {
		if got := string(a.call("GET", path, "", part).want(200).body); strings.Contains(got, "hidden") || !strings.Contains(got, `"weight":3`) {
			t.Errorf("with a prefix, %s tells %s", path, got)
		}
		if got := string(a.call("GET", path, "", all).want(200).body); !strings.Contains(got, "hidden") {
			t.Errorf("without a prefix, %s tells %s", path, got)
		}
	}
	last := decode[struct{ NextCursor string }](a.call("GET", "/v1/jobs?limit=2", "", part).want(200))
	if last.NextCursor != "" {
		t.Errorf("the last page tells of others: %+v", last)
	}

	// No answer shows whether there is a job.
	const there, not = "/v1/jobs/zzz", "/v1/jobs/zzy"
	for _, request := range []struct {
		method, path, body string
		headers            []string
	}{
		{"GET", "", "", nil},
		{"GET", "", "", []string{"If-None-Match: *"}},
		{"GET", "/preview", "", nil},
		{"PUT", "", body("", time.Hour), nil},
		{"PUT", "", body("", time.Hour), []string{"If-None-Match: *"}},
		{"PUT", "", body("", time.Hour), []string{"If-Match: *"}},
		{"PUT", "", body("", 0), []string{`If-Match: "x"`}},
		{"PATCH", "", `{"deadline":"1h"}`, []string{"Content-Type: application/merge-patch+json"}},
		{"PATCH", "", `{"deadline":"1h"}`, []string{"Content-Type: application/merge-patch+json", "If-Match: *"}},
		{"DELETE", "", "", nil},
		{"POST", "/pause", "", nil},
		{"POST", "/resume", "", nil},
		{"POST", "/trigger", "", nil},
	} {
		one, other := a.call(request.method, there+request.path, withoutKey(request.body), append(request.headers, part)...), a.call(request.method, not+request.path, withoutKey(request.body), append(request.headers, part)...)
		if one.status < 400 || one.status != other.status || one.problem().Detail != other.problem().Detail {
			t.Errorf("%s %s %q: of a job it is answered %d %s; of none, %d %s", request.method, request.path, request.headers, one.status, one.body, other.status, other.body)
		}
	}
	if p := a.call("PUT", there, withoutKey(body("", time.Hour)), part).want(403).problem(); !strings.Contains(p.Detail, `"mail/"`) {
		t.Errorf("it does not name the prefix: %s", p.Detail)
	}
	a.call("POST", "/v1/preview", `{"delay":"1h"}`, part).want(200)
	a.call("POST", "/v1/preview", `{"delay":"1h","key":"zzz"}`, part).want(403)

	batch := a.results(asLines, a.call("POST", "/v1/jobs/batch", body("mail/3", time.Hour)+"\n"+body("zzz", 2*time.Hour)+"\n"+body("mail/4", time.Hour), part, "Content-Type: "+asLines).want(200).body)
	if len(batch) != 3 || batch[0].Status != 201 || batch[1].Status != 403 || batch[2].Status != 201 {
		t.Errorf("the batch is answered with %+v", batch)
	}
	if got := decode[struct{ Jobs, Cancelled int }](a.call("DELETE", "/v1/jobs?prefix=m", "", part).want(200)); got.Jobs != 4 || got.Cancelled != 4 {
		t.Errorf("it has cancelled %+v", got)
	}
	if got := decode[struct{ Jobs int }](a.call("DELETE", "/v1/jobs?prefix=z", "", part).want(200)); got.Jobs != 0 {
		t.Errorf("it has cancelled %+v", got)
	}
	if got := keys("/v1/jobs", all); got != "Mail/1 mai/1 mail mail0 zzz" {
		t.Errorf("what is left is %q", got)
	}
}

// withoutKey returns a body whose key is in the path.
func withoutKey(body string) string {
	if !strings.Contains(body, `"key":""`) {
		return body
	}
	return with(body, "key", nil)
}

// TestDeadLettersOfAPrefix are found, redriven and deleted, and no others, by whichever filter.
func TestDeadLettersOfAPrefix(t *testing.T) {
	t.Parallel()
	a := newKeyedAPI(t)
	all, part := a.key(access.Operator, "", "acme"), a.key(access.Operator, "mail/", "acme")
	for _, key := range []string{"mail/1", "mail/2", "news/1", "news/2"} {
		a.call("POST", "/v1/jobs", body(key, 0), all).want(201)
	}
	ids := map[string]string{}
	bury := func() {
		for _, c := range a.claim() {
			ids[c.Name.Key] = c.ID.String()
			a.settle(c, store.Bury, "410 Gone")
		}
	}
	bury()
	count := func(query, by string) int {
		return len(decode[letters](a.call("GET", "/v1/dead-letters"+query, "", by).want(200)).Items)
	}
	for query, want := range map[string]int{
		"": 2, "?prefix=n": 0, "?prefix=m": 2, "?prefix=mail/1": 1, "?key=news/1": 0, "?key=mail/1": 1, "?limit=2": 2, "?prefix=news/1": 0,
	} {
		if got := count(query, part); got != want {
			t.Errorf("%q lists %d, want %d", query, got, want)
		}
	}
	none := job.OccurrenceID(job.Name{Tenant: "acme", Key: "x"}, "", start, 0, "").String()
	for _, request := range [][2]string{{"POST", "/redrive"}, {"DELETE", ""}} {
		one := a.call(request[0], "/v1/dead-letters/"+ids["news/1"]+request[1], "", part).want(404)
		other := a.call(request[0], "/v1/dead-letters/"+none+request[1], "", part).want(404)
		if one.problem().Detail != other.problem().Detail {
			t.Errorf("one that is there is answered %s; another, %s", one.body, other.body)
		}
	}
	for query, want := range map[string]int{"key=news/1": 0, "prefix=news/": 0, "prefix=n": 0, "all=true": 2} {
		if got := decode[struct{ Redriven int }](a.call("POST", "/v1/dead-letters/redrive?"+query, "", part).want(200)).Redriven; got != want {
			t.Errorf("%q redrives %d, want %d", query, got, want)
		}
	}
	a.advance(time.Second)
	bury()
	a.call("POST", "/v1/dead-letters/"+ids["mail/1"]+"/redrive", "", part).want(200)
	a.call("DELETE", "/v1/dead-letters/"+ids["mail/2"], "", part).want(204)
	if got := decode[struct{ Deleted int }](a.call("DELETE", "/v1/dead-letters?all=true", "", part).want(200)).Deleted; got != 0 || count("", all) != 2 {
		t.Errorf("it deletes %d, and %d are left", got, count("", all))
	}
}

// TestBacklogOfSomeTenants: the backlog has the tenants in scope, and no trace of others.
func TestBacklogOfSomeTenants(t *testing.T) {
	t.Parallel()
	a := newKeyedAPI(t, func(c *handlers.Config) {
		c.Rate = func() float64 { return 10 }
		c.Destinations = func() []handlers.DestinationState {
			return []handlers.DestinationState{{Name: "http elsewhere", InFlight: 3}}
		}
	})
	root := a.key(access.Admin, "", "*")
	for i, tenant := range []string{"acme", "bolt", "cave"} {
		for n := range (i + 1) * 2 {
			a.call("POST", "/v1/jobs", with(body(fmt.Sprint(n), time.Duration(10+i)*time.Second), "priority", []string{"high", "low"}[n%2]), root, "Carillon-Tenant: "+tenant).want(201)
		}
	}
	a.call("POST", "/v1/jobs", body("later", time.Hour), root, "Carillon-Tenant: acme").want(201)
	a.advance(time.Minute)
	got := a.call("GET", "/v1/backlog", "", a.key(access.Viewer, "", "acme", "bolt", "unknown")).want(200)
	want := fmt.Sprintf(`{"at":%q,"pending":7,"due":6,"oldestDue":%q,"priorities":[{"priority":"high","due":3,"pending":3},{"priority":"normal","due":0,"pending":1},{"priority":"low","due":3,"pending":3}],"tenants":[`+
		`{"name":"bolt","priority":"normal","weight":1,"paused":false,"oldestDue":%q,"due":4,"pending":4},`+
		`{"name":"acme","priority":"normal","weight":1,"paused":false,"oldestDue":%q,"due":2,"pending":3}],`+
		`"destinations":[{"name":"http somewhere","due":6,"pending":7}]}`, at(time.Minute), at(10*time.Second), at(11*time.Second), at(10*time.Second))
	if string(got.body) != want {
		t.Errorf("it is\n%s\nwant\n%s", got.body, want)
	}
	if got := decode[backlog](a.call("GET", "/v1/backlog", "", a.key(access.Viewer, "", "bolt")).want(200)); got.Due != 4 || len(got.Tenants) != 1 {
		t.Errorf("of one tenant it is %+v", got)
	}
	if got := decode[backlog](a.call("GET", "/v1/backlog", "", root).want(200)); got.Due != 12 || got.Pending != 13 || len(got.Tenants) != 3 || len(got.Destinations) != 2 || got.DrainSeconds == 0 {
		t.Errorf("of all tenants it is %+v", got)
	}
	if got := decode[backlog](a.call("GET", "/v1/backlog", "", a.key(access.Viewer, "", "unknown")).want(200)); got.Pending != 0 || len(got.Destinations) != 0 {
		t.Errorf("of a tenant that has nothing it is %+v", got)
	}
	a.call("GET", "/v1/backlog", "", a.key(access.Admin, "mail/", "*")).want(403)
}

// TestTenantsInScope: a key sees and sets its own.
func TestTenantsInScope(t *testing.T) {
	t.Parallel()
	a := newKeyedAPI(t)
	root := a.key(access.Admin, "", "*")
	for _, tenant := range []string{"a1", "a2", "b1", "b2"} {
		a.call("PUT", "/v1/tenants/"+tenant, `{}`, root).want(201)
	}
	names := func(query, by string) (string, string) {
		page := decode[struct {
			Items      []tenant
			NextCursor string
		}](a.call("GET", "/v1/tenants"+query, "", by).want(200))
		var names []string
		for _, t := range page.Items {
			names = append(names, t.Name)
		}
		return strings.Join(names, " "), page.NextCursor
	}
	some := a.key(access.Operator, "", "b2", "unknown", "a1", "a2")
	if got, next := names("", some); got != "a1 a2 b2" || next != "" {
		t.Errorf("it lists %q and then %q", got, next)
	}
	first, next := names("?limit=2", some)
	rest, last := names("?limit=2&cursor="+next, some)
	if first != "a1 a2" || rest != "b2" || last != "" {
		t.Errorf("in pages it lists %q and %q", first, rest)
	}
	one, other := a.call("GET", "/v1/tenants/b1", "", some).want(404), a.call("GET", "/v1/tenants/unknown", "", some).want(404)
	if one.problem().Detail != other.problem().Detail {
		t.Errorf("one that is there is answered %s; another, %s", one.body, other.body)
	}
	a.call("DELETE", "/v1/tenants/b1", "", some).want(404)
	known, unknown := a.call("PUT", "/v1/tenants/b1", `{"weight":9}`, some).want(403), a.call("PUT", "/v1/tenants/b3", `{"weight":9}`, some).want(403)
	if known.problem().Detail != unknown.problem().Detail {
		t.Errorf("one that is there is answered %s; another, %s", known.body, unknown.body)
	}
	a.call("PUT", "/v1/tenants/unknown", `{"weight":9}`, some).want(201)
	a.call("PUT", "/v1/tenants/a1", `{"weight":9}`, a.key(access.Submitter, "", "a1")).want(403)
	a.call("PUT", "/v1/tenants/a1", `{"weight":9}`, a.key(access.Operator, "mail/", "a1")).want(403)
	if got, _ := names("", root); got != "a1 a2 b1 b2 unknown" {
		t.Errorf("there are %q", got)
	}
}

// TestLongRequestEndsWithItsKey: a stream of jobs ends when its key does.
func TestLongRequestEndsWithItsKey(t *testing.T) {
	t.Parallel()
	written := make(lineByLine, 100)
	trail := audit.New(written, slog.Default(), nil)
	t.Cleanup(func() { _ = trail.Close() })
	a := newKeyedAPI(t, func(c *handlers.Config) { c.Audit = trail })
	token := a.token(access.KeyParams{Role: access.Submitter, Scope: access.Scope{Tenants: []string{"acme"}}})
	id, _ := access.ParseToken(token)
	s := a.stream(t.Context(), asLines, shows(token))
	next := func(key string) string {
		s.send(body(key, time.Hour) + "\n")
		line, err := s.line()
		if err != nil {
			t.Fatal(err)
		}
		return line
	}
	if got := next("k1"); !strings.Contains(got, `"status":201`) {
		t.Fatalf("the first job is answered with %s", got)
	}
	if err := a.keys.Revoke(t.Context(), id, a.clock()); err != nil {
		t.Fatal(err)
	}
	if got := next("k2"); !strings.Contains(got, `"status":401`) || !strings.Contains(got, `"index":1`) {
		t.Errorf("after its key was revoked, a job is answered with %s", got)
	}
	if _, err := s.line(); err == nil {
		t.Error("it goes on")
	}
	lines := ""
	for strings.Count(lines, "\n") < 3 {
		lines += written.next(t)
	}
	var told []string
	for _, l := range auditLines(t, lines) {
		told = append(told, fmt.Sprintf("%s, status %d", l.brief(), l.Status))
	}
	for _, want := range []string{
		id + " POST /v1/jobs/batch done tenant=acme key=k1, status 201",
		id + " POST /v1/jobs/batch refused tenant=acme, status 401",
	} {
		if !slices.Contains(told, want) {
			t.Errorf("the trail has no line %q, but %q", want, told)
		}
	}
	root := a.key(access.Viewer, "", "*")
	if got := a.call("GET", "/v1/jobs", "", root, "Carillon-Tenant: acme").want(200); strings.Contains(string(got.body), "k2") {
		t.Errorf("it was put: %s", got.body)
	}
}

// TestAuditTellsWhichKey: the trail names the key of each change and of each refusal, and none if it is unknown.
func TestAuditTellsWhichKey(t *testing.T) {
	t.Parallel()
	written := make(lineByLine, 100)
	trail := audit.New(written, slog.Default(), nil)
	t.Cleanup(func() { _ = trail.Close() })
	a := newKeyedAPI(t, func(c *handlers.Config) { c.Audit = trail })
	token := a.token(access.KeyParams{Role: access.Submitter, Scope: access.Scope{Tenants: []string{"acme"}, KeyPrefix: "mail/"}})
	id, _ := access.ParseToken(token)
	by, root := shows(token), a.token(access.KeyParams{Role: access.Admin, Scope: access.Everything()})
	made := decode[apiKey](a.call("POST", "/v1/keys", `{"role":"viewer","tenants":["acme"]}`, shows(root)).want(201))
	rootID, _ := access.ParseToken(root)
	if got, want := auditLines(t, written.next(t))[0].brief(), rootID+" POST /v1/keys done target="+made.ID; got != want {
		t.Errorf("a key that is made is in the trail as %s, want %s", got, want)
	}
	for _, c := range []struct {
		method, path, body, header string
		status                     int
		want                       string
	}{
		{"PUT", "/v1/jobs/mail%2F1", body("mail/1", time.Hour), by, 201, id + " PUT /v1/jobs/:key done tenant=acme key=mail/1"},
		{"PUT", "/v1/jobs/news", body("news", time.Hour), by, 403, id + " PUT /v1/jobs/:key refused tenant=acme key=news"},
		{"POST", "/v1/jobs/mail%2F1/pause", "", by, 403, id + " POST /v1/jobs/:key/pause refused key=mail/1"},
		{"GET", "/metrics", "", by, 403, id + " GET /metrics refused"},
		{"GET", "/v1/jobs", "", shows(token + "0"), 401, " GET /v1/jobs refused"},
		{"GET", "/v1/jobs", "", "Carillon-Tenant: acme", 401, " GET /v1/jobs refused tenant=acme"},
	} {
		a.call(c.method, c.path, c.body, c.header).want(c.status)
		text := written.next(t)
		if got := auditLines(t, text)[0].brief(); got != c.want || strings.Contains(text, token) {
			t.Errorf("%s %s is in the trail as %s", c.method, c.path, text)
		}
	}
}
