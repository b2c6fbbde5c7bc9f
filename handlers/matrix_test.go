package handlers_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/carillon-scheduler/carillon/access"
	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/handlers"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/memory"
)

// corner is a part of a store in the matrix test: the jobs of a tenant whose keys have a prefix.
type corner struct{ tenant, prefix string }

// corners have tenants and prefixes that stand in no text of the API.
var corners = []corner{{"acme7", "mail/"}, {"acme7", "news/"}, {"bolt8", "mail/"}, {"bolt8", "news/"}}

// marker returns a text that all data of a corner contain: keys, payloads, errors and notes.
func (c corner) marker() string { return "marker-" + c.tenant + "-" + strings.Trim(c.prefix, "/") }

func (c corner) job() string  { return c.prefix + c.marker() }
func (c corner) dead() string { return c.prefix + "dead-" + c.marker() }

// whole returns the scope that has the corner and nothing else.
func (c corner) whole() access.Scope {
	return access.Scope{Tenants: []string{c.tenant}, KeyPrefix: c.prefix}
}

func (c corner) in(s access.Scope) bool { return s.HasTenant(c.tenant) && s.HasKey(c.prefix) }

// samples has a request of each operation, by its id, that succeeds for a caller with the permission. An operation
// without one fails the test: a new operation needs a request here, and the status beyond a key's scope.
var samples = map[string]sample{
	"index":               {ok: 200},
	"health":              {ok: 200},
	"ready":               {ok: 200},
	"specification":       {ok: 200},
	"specificationAsJSON": {ok: 200},
	"jobSchema":           {ok: 200},
	"metrics":             {ok: 200},

	"listJobs": {ok: 200, beyond: 200, shows: true},
	"postJob":  {ok: 200, beyond: 403, changes: true, body: func(w *world, c corner) string { return w.job(c.job(), "new") }},
	"putJob":   {ok: 200, beyond: 403, changes: true, body: func(w *world, _ corner) string { return w.job("", "new") }},
	"postBatch": {ok: 200, beyond: 200, changes: true, echoes: true, body: func(w *world, c corner) string {
		return "[" + w.job(c.job(), "new") + "]"
	}},
	"cancelJobs": {
		ok: 200, beyond: 200, changes: true, query: func(*world, corner) string { return "prefix=m" },
		only: func(c corner) bool { return c.prefix == "mail/" },
	},
	"getJob":     {ok: 200, beyond: 404, shows: true},
	"patchJob":   {ok: 200, beyond: 404, changes: true, body: func(*world, corner) string { return `{"deadline":"1h"}` }},
	"cancelJob":  {ok: 200, beyond: 404, changes: true},
	"previewJob": {ok: 200, beyond: 404},
	"pauseJob":   {ok: 200, beyond: 404, changes: true},
	"resumeJob":  {ok: 200, beyond: 404},
	"triggerJob": {ok: 202, beyond: 404, changes: true},
	"checkIn":    {ok: 409, beyond: 404}, // the jobs have no expectBy
	"previewDraft": {ok: 200, beyond: 403, body: func(w *world, c corner) string {
		return w.job(c.prefix+"draft", "new")
	}},

	"explainJob":    {ok: 200, beyond: 200, echoes: true},
	"getJobHistory": {ok: 200, beyond: 200, shows: true},
	"listHistory":   {ok: 200, beyond: 200, shows: true},

	"listDeadLetters":    {ok: 200, beyond: 200, shows: true},
	"deleteDeadLetters":  {ok: 200, beyond: 200, changes: true, query: func(*world, corner) string { return "all=true" }},
	"redriveDeadLetters": {ok: 200, beyond: 200, changes: true, query: func(_ *world, c corner) string { return "key=" + url.QueryEscape(c.dead()) }},
	"redriveDeadLetter":  {ok: 200, beyond: 404, changes: true, id: func(w *world, c corner) string { return w.letters[c] }},
	"deleteDeadLetter":   {ok: 204, beyond: 404, changes: true, id: func(w *world, c corner) string { return w.letters[c] }},

	"listTenants":  {ok: 200, beyond: 200},
	"getTenant":    {ok: 200, beyond: 404},
	"putTenant":    {ok: 200, beyond: 403, changes: true, body: func(*world, corner) string { return `{"weight":3}` }},
	"resetTenant":  {ok: 200, beyond: 404, changes: true},
	"getBacklog":   {ok: 200, beyond: 200},
	"getStatus":    {ok: 200, beyond: 200},
	"getForecast":  {ok: 200, beyond: 200},
	"postForecast": {ok: 200, beyond: 200, body: func(*world, corner) string { return `{"step":"2h"}` }},

	"listSecrets":         {ok: 200, shows: true},
	"putSecret":           {ok: 200, changes: true, body: func(*world, corner) string { return `{"value":"new"}` }},
	"deleteSecret":        {ok: 204, changes: true},
	"listSigningSecrets":  {ok: 200, shows: true},
	"rotateSigningSecret": {ok: 200, changes: true, body: func(*world, corner) string { return `{"overlap":"1h"}` }},
	"deleteSigningSecret": {ok: 204, changes: true},
	"postSigningSecret":   {ok: 201, changes: true, body: func(_ *world, c corner) string { return `{"name":"new-` + c.marker() + `"}` }},

	"getLimits":   {ok: 200, beyond: 404},
	"putLimits":   {ok: 200, changes: true, body: func(*world, corner) string { return `{"maxJobs":9}` }},
	"resetLimits": {ok: 200, changes: true},

	"getSession": {ok: 200, beyond: 200},
	"signIn":     {ok: 200, beyond: 200},
	"signOut":    {ok: 204, beyond: 204},

	"listKeys": {ok: 200, beyond: 200, shows: true},
	"createKey": {ok: 201, beyond: 403, changes: true, body: func(_ *world, c corner) string {
		return encode(map[string]any{"role": "viewer", "tenants": []string{c.tenant}, "keyPrefix": c.prefix, "note": "new"})
	}},
	"getKey":    {ok: 200, beyond: 404, shows: true, id: func(w *world, c corner) string { return w.keys[c] }},
	"revokeKey": {ok: 204, beyond: 404, changes: true, id: func(w *world, c corner) string { return w.keys[c] }},
	"rotateKey": {
		ok: 200, beyond: 404, changes: true, id: func(w *world, c corner) string { return w.keys[c] },
		body: func(*world, corner) string { return `{"overlap":"1h"}` },
	},
	"putKeyLimits": {
		ok: 200, beyond: 404, changes: true, id: func(w *world, c corner) string { return w.keys[c] },
		body: func(*world, corner) string { return `{"maxJobs":9}` },
	},
}

// sample is a request of an operation about a corner, and its answer.
type sample struct {
	// ok is the status for a caller with the permission, and beyond that for one whose scope lacks the corner.
	ok, beyond int
	// changes means that the request changes the corner, and shows that the answer has the corner's marker.
	changes, shows bool
	// echoes means that the answer repeats the key that was sent.
	echoes bool
	// id, query and body return the parts of the request; nil for parts that the operation does not have.
	id, query, body func(*world, corner) string
	// only selects the corners that are tested; nil selects all.
	only func(corner) bool
}

// matrixCaller asks with a key of its own, which has a role and a scope; without a role, with none.
type matrixCaller struct {
	role  access.Role
	scope access.Scope
}

func (c matrixCaller) String() string {
	if c.role == "" {
		return "nobody"
	}
	return fmt.Sprintf("a %s of %q", c.role, append(slices.Clone(c.scope.Tenants), c.scope.KeyPrefix))
}

func matrixCallers() []matrixCaller {
	all := []matrixCaller{{}}
	for _, role := range access.Roles() {
		for _, scope := range []access.Scope{
			access.Everything(), {Tenants: []string{"acme7", "bolt8"}}, {Tenants: []string{"acme7"}},
			{Tenants: []string{access.AllTenants}, KeyPrefix: "mail/"}, {Tenants: []string{"acme7"}, KeyPrefix: "mail/"},
		} {
			all = append(all, matrixCaller{role, scope})
		}
	}
	return all
}

// TestMatrix requests every specified operation with every role, about data within a key's scope and beyond it: of
// another tenant, or with another prefix. It checks the status, that the answer has no data from beyond the scope, and
// that none of these data have changed.
func TestMatrix(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector sees the same in other tests")
	}
	t.Parallel()
	spec := specification(t)
	template := newTemplate(t)
	for path, item := range spec.Paths.Map() {
		for method, operation := range item.Operations() {
			t.Run(operation.OperationID, func(t *testing.T) {
				t.Parallel()
				s, placed := samples[operation.OperationID]
				if !placed {
					t.Fatal("no request of this operation is among the samples: add one")
				}
				w, checked := template.fresh(t), map[int]bool{}
				for _, c := range corners {
					if s.only != nil && !s.only(c) {
						continue
					}
					for _, by := range matrixCallers() {
						if w.ask(operation, method, path, s, by, c, checked) {
							w = template.fresh(t)
						}
					}
				}
			})
		}
	}
}

// wanted returns the status for a caller that asks for an operation about a corner.
func (s sample) wanted(operation *openapi3.Operation, template string, by matrixCaller, of corner) int {
	needs, _ := operation.Extensions["x-permission"].(string)
	extent, _ := operation.Extensions["x-extent"].(string)
	byTenant := by.scope.HasTenant(of.tenant)
	switch {
	case needs == string(access.Public):
		return s.ok
	case by.role == "":
		return http.StatusUnauthorized
	case !by.role.May(access.Permission(needs)):
		return http.StatusForbidden
	}
	if strings.Contains(template, "{tenant}") { // the prefix is no matter then
		of.prefix = by.scope.KeyPrefix
	}
	forbidden := true
	switch extent {
	case "jobs":
		forbidden = !byTenant
	case "tenant":
		forbidden = !byTenant || by.scope.KeyPrefix != ""
	case "tenants":
		forbidden = false
	case "whole-tenants":
		forbidden = by.scope.KeyPrefix != ""
	case "everything":
		return map[bool]int{true: s.ok, false: http.StatusForbidden}[by.scope.Within(access.Everything()) && access.Everything().Within(by.scope)]
	}
	switch {
	case forbidden:
		return http.StatusForbidden
	case !of.in(by.scope):
		return s.beyond
	default:
		return s.ok
	}
}

// ask makes a request and checks its answer and its effect. The form of the answers of one status is checked once. It
// reports whether anything has changed.
func (w *world) ask(
	operation *openapi3.Operation, method, template string, s sample, by matrixCaller, of corner, checked map[int]bool,
) (changed bool) {
	w.Helper()
	what := fmt.Sprintf("%s by %s about %s", operation.OperationID, by, of.marker())
	path := strings.NewReplacer("{key}", url.PathEscape(of.job()), "{tenant}", of.tenant, "{name}", of.marker()).Replace(template)
	if s.id != nil {
		path = strings.ReplaceAll(path, "{id}", s.id(w, of))
	}
	if s.query != nil {
		path += "?" + s.query(w, of)
	}
	text := ""
	if s.body != nil {
		text = s.body(w, of)
	}
	request := httptest.NewRequestWithContext(w.Context(), method, path, strings.NewReader(text))
	if text != "" {
		request.Header.Set("Content-Type", "application/json")
	}
	if token := w.tokens[by.String()]; token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	if extent := operation.Extensions["x-extent"]; extent == "jobs" || extent == "tenant" {
		request.Header.Set("Carillon-Tenant", of.tenant)
	}
	before := w.last
	recorder := httptest.NewRecorder()
	w.handler.ServeHTTP(recorder, request)
	after := w.content()
	w.last = after
	got := answer{api: w.api, status: recorder.Code, header: recorder.Header(), body: recorder.Body.Bytes()}
	if !checked[got.status] {
		checked[got.status] = true
		w.conforms(request, text, got)
	}

	want := s.wanted(operation, template, by, of)
	if got.status != want {
		w.Errorf("%s: status %d, want %d: %s", what, got.status, want, got.body)
	}
	told := string(got.body) + "\n" + encode(got.header)
	if s.echoes {
		told = strings.ReplaceAll(told, of.job(), "")
	}
	for _, c := range corners {
		if c.in(by.scope) && by.role != "" {
			continue
		}
		if strings.Contains(told, c.marker()) || !by.scope.HasTenant(c.tenant) && strings.Contains(told, c.tenant) {
			w.Errorf("%s: the answer tells of %s: %s", what, c.marker(), told)
		}
		if before[c] != after[c] {
			w.Errorf("%s: it has changed\n%s\nto\n%s", what, before[c], after[c])
		}
	}
	own, done := of.in(by.scope), got.status == s.ok && got.status < 300
	if done && own && s.shows && !strings.Contains(told, of.marker()) {
		w.Errorf("%s: it is not shown: %s", what, told)
	}
	if done && own && by.role != "" && s.changes && before[of] == after[of] {
		w.Errorf("%s: it has changed nothing", what)
	}
	if before[corner{}] != after[corner{}] {
		w.Errorf("%s: it has changed the keys of the callers", what)
	}
	for c := range after {
		changed = changed || before[c] != after[c]
	}
	if (got.status >= 400 || !s.changes) && changed {
		w.Errorf("%s: it was answered with %d and has changed something", what, got.status)
	}
	return changed
}

// world is a store with something in each corner, and the API on it, which asks for keys.
type world struct {
	*api
	handler http.Handler
	store   store.Store
	access  *access.Keys
	// tokens are the callers' tokens.
	tokens map[string]string
	// letters and keys are the ids of a dead letter and a key of each corner.
	letters, keys map[corner]string
	// last is the content after the last request.
	last map[corner]string
	// keysRead is the keys of each corner, as of keyRecords.
	keysRead   map[corner]string
	keyRecords []store.Record
}

// template is the initial state of each world.
type template struct {
	world
	documents []store.Document
	records   map[string][]store.Record // by collection
}

// collections are the collections of all records that an API writes.
var collections = []string{"tenants", "tenant-settings", "tenant-limits", "keys", "secrets", "signing-secrets", "history", "history-runs"}

func newTemplate(t *testing.T) *template {
	var closeHistory func()
	a := newAPI(t, withEncryptionKey, recording(&closeHistory))
	w := &template{world: world{
		api: a, store: a.store, access: access.NewKeys(a.store),
		tokens: map[string]string{}, letters: map[corner]string{}, keys: map[corner]string{},
	}, records: map[string][]store.Record{}}
	t.Cleanup(func() { _ = w.access.Close() })
	for _, c := range corners {
		of := "Carillon-Tenant: " + c.tenant
		a.call("POST", "/v1/jobs", w.jobOf(c.dead(), c.marker(), 0), of).want(201)
		for _, claimed := range a.claim() {
			a.settle(claimed, store.Bury, "410 Gone "+c.marker())
			w.letters[c] = claimed.ID.String()
		}
		a.call("DELETE", pathOf(c.dead()), "", of).want(200) // the dead letter stays
		a.call("POST", "/v1/jobs", w.job(c.job(), c.marker()), of).want(201)
		_, key, err := w.access.Create(t.Context(), access.KeyParams{Role: access.Viewer, Scope: c.whole(), Note: c.marker()}, "anyone", start)
		if err != nil {
			t.Fatal(err)
		}
		w.keys[c] = key.ID
		a.call("PUT", "/v1/tenants/"+c.tenant, `{"weight":2}`)
		a.call("PUT", "/v1/secrets/"+c.marker(), `{"value":"`+c.marker()+`"}`, of).want(201)
		a.call("POST", "/v1/signing-secrets", `{"name":"`+c.marker()+`"}`, of).want(201)
		a.call("PUT", "/v1/tenants/"+c.tenant+"/limits", `{"maxPending":1000}`)
	}
	for _, by := range matrixCallers()[1:] {
		token, _, err := w.access.Create(t.Context(), access.KeyParams{Role: by.role, Scope: by.scope, Note: "of a caller"}, "anyone", start)
		if err != nil {
			t.Fatal(err)
		}
		w.tokens[by.String()] = token
	}
	closeHistory()
	var err error
	if w.documents, _, err = a.store.Export(t.Context(), "", 1000); err != nil {
		t.Fatal(err)
	}
	for _, collection := range collections {
		if w.records[collection], err = a.store.Records(t.Context(), store.RecordFilter{Collection: collection, Limit: 1000, Now: start}); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

// fresh makes a world as the template is.
func (from *template) fresh(t *testing.T) *world {
	w := from.world
	stored := memory.New()
	if _, err := stored.Import(t.Context(), from.documents); err != nil {
		t.Fatal(err)
	}
	for collection, records := range from.records {
		for _, r := range records {
			change := store.RecordChange{Collection: collection, Key: r.Key, Version: r.Version, Body: r.Body, ExpiresAt: r.ExpiresAt, Now: start}
			if err := stored.WriteRecords(t.Context(), []store.RecordChange{change})[0]; err != nil {
				t.Fatal(err)
			}
		}
	}
	w.store, w.access = stored, access.NewKeys(stored)
	t.Cleanup(func() { _ = w.access.Close() })
	w.api = &api{TB: t, spec: withAnyData(t)}
	config := handlers.Config{
		Store: stored, Inspector: stored, Records: stored, Auth: w.access, Keys: w.access,
		Callbacks: callbacks.NewRegistry(sender("http")),
		Metrics:   promhttp.HandlerFor(prometheus.NewRegistry(), promhttp.HandlerOpts{}),
		Limits:    job.Limits{Instants: 10, Payload: 2000}, MaxBody: 4000,
		Expansion: job.Expansion{Horizon: horizon, CatchUpLimit: 1000}, Retain: retain,
		Forecast: handlers.Forecast{Definitions: stored},
		Now:      func() time.Time { return start },
	}
	withEncryptionKey(&config)
	w.handler = handlers.New(config)
	w.last = w.content()
	return &w
}

// job writes a job with a text in its payload.
func (w *world) job(key, text string) string { return w.jobOf(key, text, time.Hour) }

func (w *world) jobOf(key, text string, offset time.Duration) string {
	members := []any{"callback", map[string]any{"type": "http", "data": map[string]any{"payload": text}}}
	if key == "" {
		members = append(members, "key", nil)
	}
	return with(body(key, offset), members...)
}

// content returns the content of the store by corner, and the keys of the callers under no corner. It is taken after
// each request, so it is encoded by hand: an encoder took most of the test's time.
func (w *world) content() map[corner]string {
	w.Helper()
	all := map[corner]*strings.Builder{{}: {}}
	for _, c := range corners {
		all[c] = &strings.Builder{}
	}
	add := func(c corner, facts ...string) {
		if all[c] == nil {
			all[c] = &strings.Builder{}
		}
		for _, fact := range facts {
			all[c].WriteString(fact)
			all[c].WriteByte('\n')
		}
	}
	of := func(name job.Name) corner {
		prefix, _, _ := strings.Cut(name.Key, "/")
		return corner{name.Tenant, prefix + "/"}
	}
	instant := func(t time.Time) string { return strconv.FormatInt(t.UnixMilli(), 10) }
	documents, _, err := w.store.Export(context.Background(), "", 1000)
	if err != nil {
		w.Fatal(err)
	}
	for _, d := range documents {
		if j := d.Job; j != nil {
			add(of(j.Name), j.Key, string(j.Version), instant(j.PausedAt), string(j.Callback.Data))
			continue
		}
		o := d.Occurrence
		add(of(o.Name), o.ID.String(), instant(o.DueAt), instant(o.FailedAt), o.LastError, strconv.Itoa(o.Attempt))
	}
	for _, collection := range []string{"tenants", "tenant-settings", "tenant-limits", "secrets", "signing-secrets"} {
		for _, r := range w.recordsOf(collection) {
			for _, c := range corners {
				tenant, secret, _ := strings.Cut(r.Key, "/")
				if c.tenant == tenant && (secret == "" || strings.Contains(secret, c.marker())) {
					add(c, collection, string(r.Version), string(r.Body))
				}
			}
		}
	}
	for c, keys := range w.keysIn() {
		add(c, keys)
	}
	texts := make(map[corner]string, len(all))
	for c, has := range all {
		texts[c] = has.String()
	}
	return texts
}

func (w *world) recordsOf(collection string) []store.Record {
	w.Helper()
	records, err := w.store.Records(context.Background(), store.RecordFilter{Collection: collection, Limit: 1000, Now: start})
	if err != nil {
		w.Fatal(err)
	}
	return records
}

// keysIn returns the keys of each corner. They are read again if their records have changed.
func (w *world) keysIn() map[corner]string {
	w.Helper()
	records := w.recordsOf("keys")
	if w.keysRead != nil && slices.EqualFunc(records, w.keyRecords, func(a, b store.Record) bool {
		return a.Key == b.Key && a.Version == b.Version && bytes.Equal(a.Body, b.Body)
	}) {
		return w.keysRead
	}
	keys, err := w.access.List(context.Background(), "", 1000)
	if err != nil {
		w.Fatal(err)
	}
	all := map[corner][]access.Key{}
	for _, k := range keys {
		k.LastUsed = time.Time{} // which is written when it is written
		place := corner{}
		for _, c := range corners {
			if k.Note != "of a caller" && k.Scope.Within(c.whole()) {
				place = c
			}
		}
		all[place] = append(all[place], k)
	}
	w.keyRecords, w.keysRead = records, make(map[corner]string, len(all))
	for c, has := range all {
		text, err := json.Marshal(has)
		if err != nil {
			w.Fatal(err)
		}
		w.keysRead[c] = string(text)
	}
	return w.keysRead
}
