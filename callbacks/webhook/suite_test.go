package webhook_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"go.opentelemetry.io/otel/attribute"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/callbacks/callbackstest"
	"github.com/carillon-scheduler/carillon/callbacks/webhook"
	"github.com/carillon-scheduler/carillon/job"
)

func TestSuite(t *testing.T) {
	callbackstest.Run(t, open)
}

const password, token, bearer = "pass%word%2F1", "query-s3cret+%26", "be4rer-s3cret"

func open(t *testing.T) callbackstest.Harness {
	sender := webhook.New(webhook.Options{})
	t.Cleanup(func() { _ = sender.Close() })
	r := newReceiver(t)

	address := func(path string) string {
		return strings.Replace(r.URL, "://", "://user:"+url.QueryEscape(password)+"@", 1) + path + "?token=" + url.QueryEscape(token)
	}
	failing := func(path string) []byte { return data("url", address(path)) }
	answer := func(name, path string, want callbacks.Failure, says ...string) callbackstest.Failure {
		return callbackstest.Failure{Name: name, Data: failing(path), Want: want, Says: says}
	}
	failures := []callbackstest.Failure{
		answer("hangs up", "/hang-up", callbacks.Failure{}, "EOF"),
		answer("pause in seconds", "/429/7", callbacks.Failure{After: 7 * time.Second, Blame: callbacks.BlamePart}, "429 Too Many Requests"),
		answer("pause of two days", "/503/172800", callbacks.Failure{After: 24 * time.Hour, Blame: callbacks.BlamePart}),
		answer("endless pause", "/503/99999999999999999999999", callbacks.Failure{After: 24 * time.Hour, Blame: callbacks.BlamePart}),
		answer("pause that is over", "/503/0", callbacks.Failure{Blame: callbacks.BlamePart}),
		answer("negative pause", "/503/-5", callbacks.Failure{Blame: callbacks.BlamePart}),
		answer("pause that is none", "/503/soon", callbacks.Failure{Blame: callbacks.BlamePart}),
		answer("pause until long ago", "/503/Fri,%2031%20Dec%201999%2023:59:59%20GMT", callbacks.Failure{Blame: callbacks.BlamePart}),
		answer("pause until far ahead", "/503/Fri,%2031%20Dec%209999%2023:59:59%20GMT", callbacks.Failure{After: 24 * time.Hour, Blame: callbacks.BlamePart}),
		answer("pause after a permanent failure", "/422/7", callbacks.Failure{Permanent: true}),
		{Name: "nobody listens", Data: data("url", "http://"+unused(t)+"/x?token="+token), Says: []string{"refused"}},
		answer("quotes the request", "/500", callbacks.Failure{Blame: callbacks.BlamePart}, "500 Internal Server Error: can't take /500?*** as *** with ***"),
		{
			Name: "credentials in a header",
			Data: data("url", r.URL+"/500", "headers", map[string]string{"authorization": "Bearer " + bearer}),
			Want: callbacks.Failure{Blame: callbacks.BlamePart}, Says: []string{"500", "***"},
		},
	}
	for _, status := range []int{400, 405, 410, 413, 415, 422, 300, 301, 302, 303, 304, 307, 308} {
		failures = append(failures, answer(strconv.Itoa(status), "/"+strconv.Itoa(status), callbacks.Failure{Permanent: true}, strconv.Itoa(status)))
	}
	for blame, statuses := range map[callbacks.Blame][]int{
		callbacks.BlameDelivery: {401, 402, 403, 404, 406, 408, 409, 411, 412, 414, 417, 421, 423, 425, 431, 451},
		callbacks.BlamePart:     {429, 500, 501, 502, 503, 504, 599},
	} {
		for _, status := range statuses {
			failures = append(failures, answer(strconv.Itoa(status), "/"+strconv.Itoa(status), callbacks.Failure{Blame: blame}, strconv.Itoa(status)))
		}
	}

	good := map[string][]byte{}
	for _, method := range []string{"POST", "PUT", "PATCH"} {
		good[method] = data("url", r.URL+"/", "method", method)
	}
	for _, status := range []int{200, 201, 202, 203, 204, 205, 206, 299} {
		good[strconv.Itoa(status)] = data("url", r.URL+"/"+strconv.Itoa(status))
	}
	for name, path := range map[string]string{
		"escaped path": "/a%2Fb%20c", "no path": "", "only a query": "?a=b%20c",
		"semicolons": "/;a=b?c;d", "dots": "/a/../b/./c", "two slashes": "//a", "empty query": "/?", "brackets": "/[a]?b[]=c",
		"long answer": "/long", "endless answer": "/endless",
	} {
		good[name] = data("url", r.URL+path)
	}
	good["headers"] = data("url", r.URL, "headers", map[string]string{
		"content-type": "text/plain", "X-Empty": "", "x-tab": "a\tb", "Cookie": "a=b", "Accept": "*/*", "X-!#$%&'*+.^_`|~": "~",
		"Idempotency-Key": "mine",
	})
	good["nulls for defaults"] = []byte(`{"url":"` + r.URL + `","method":null,"headers":null,"payload":null}`)

	return callbackstest.Harness{
		Sender: sender,
		Data:   func(payload string) []byte { return dataOf(address("/"), payload) },
		Await:  r.await,
		Attributes: func(_ context.Context, _ *testing.T, id job.ID) map[string]string {
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.attributes[id.String()]
		},
		Span: func(job.ID) []attribute.KeyValue {
			u, err := url.Parse(r.URL)
			if err != nil {
				t.Fatal(err)
			}
			port, _ := strconv.Atoi(u.Port())
			return []attribute.KeyValue{
				attribute.String("http.request.method", "POST"), attribute.String("server.address", u.Hostname()), attribute.Int("server.port", port),
				attribute.String("url.full", "http://REDACTED:REDACTED@"+u.Host+"/?REDACTED"), attribute.Int("http.response.status_code", 200),
			}
		},
		Good:     good,
		Bad:      bad(),
		Failures: failures,
		Secrets:  []string{password, url.QueryEscape(password), token, url.QueryEscape(token), bearer, "dXNlcjpwYXNz"},
		Hang:     r.hang,
	}
}

// data makes callback data of pairs of names and values, with some payload.
func data(pairs ...any) []byte {
	members := map[string]any{"payload": nil}
	for i := 0; i < len(pairs); i += 2 {
		members[pairs[i].(string)] = pairs[i+1]
	}
	b, err := json.Marshal(members)
	if err != nil {
		panic(err)
	}
	return b
}

func dataOf(url, payload string) []byte {
	return []byte(`{"url":"` + url + `", "payload": ` + payload + ` }`)
}

func bad() []callbackstest.Bad {
	var all []callbackstest.Bad
	for name, u := range map[string]string{
		"no scheme": "example.com/hook", "relative": "/hook", "other scheme": "ftp://example.com/", "empty": "", "no host": "http:///hook",
		"only a port": "http://:80/", "opaque": "http:example.com", "port 0": "http://example.com:0/", "port too large": "http://example.com:65536/",
		"no port after the colon": "http://example.com:/", "port in words": "http://example.com:http/", "fragment": "http://example.com/#there",
		"empty fragment": "http://example.com/#", "space before": " http://example.com/", "line break": "http://example.com/\n",
		"space in the host": "http://exa mple.com/", "space in the query": "http://example.com/?a=b c", "unicode in the query": "http://example.com/?ü",
		"wrong escape": "http://example.com/%zz", "secret in a wrong URL": "http://user:" + password + "%zz@example.com?token=" + token + "#x",
		"space in the path": "http://example.com/a b", "unicode in the path": "http://example.com/ü",
		"escape beside what needs one": "http://example.com/a%2Fb|c",
	} {
		all = append(all, callbackstest.Bad{Name: "url " + name, Data: string(data("url", u)), Pointers: []string{"/url"}})
	}
	for _, method := range []string{"GET", "HEAD", "DELETE", "OPTIONS", "CONNECT", "TRACE", "post", "P OST", " "} {
		all = append(all, callbackstest.Bad{
			Name: "method " + method, Data: string(data("url", "http://example.com", "method", method)), Pointers: []string{"/method"},
		})
	}
	headers := func(name string, values map[string]string, pointers ...string) {
		all = append(all, callbackstest.Bad{
			Name: name, Data: string(data("url", "http://u@example.com", "headers", values)), Pointers: pointers,
		})
	}
	for _, name := range []string{
		"host", "Content-Length", "transfer-encoding", "TE", "Trailer", "Upgrade", "Expect", "Connection", "Keep-Alive",
		"Proxy-Connection", "Proxy-Authorization", "webhook-id", "webhook-timestamp", "webhook-signature", "Carillon-Key",
		"carillon-timestamp", "CARILLON-ATTEMPT", "carillon-anything", "", "a b", "a:b", "ü", "a\nb", "(a)", "authorization",
	} {
		headers("header name "+name, map[string]string{name: "x"}, "/headers/"+name)
	}
	for _, value := range []string{"a\nb", "a\r\nX: y", "\x00", "\x7f", "ü", " a", "a ", "\ta"} {
		headers("header value "+strconv.Quote(value), map[string]string{"X-A/b~c": value}, "/headers/X-A~1b~0c")
	}
	headers("header twice", map[string]string{"X-A": "1", "x-a": "2"}, "/headers/x-a")
	headers("all that is wrong", map[string]string{"Host": "1", "X-B": "ü", "X-C": "c"}, "/headers/Host", "/headers/X-B")
	return append(all,
		callbackstest.Bad{Name: "no url", Data: `{"payload":1}`, Pointers: []string{"/url"}},
		callbackstest.Bad{Name: "url not a string", Data: `{"url":1,"payload":1}`, Pointers: []string{"/url"}},
		callbackstest.Bad{Name: "headers not an object", Data: `{"url":"http://a","headers":[],"payload":1}`, Pointers: []string{"/headers"}},
		callbackstest.Bad{Name: "header not a string", Data: `{"url":"http://a","headers":{"a":1},"payload":1}`, Pointers: []string{"/headers/a"}},
		callbackstest.Bad{Name: "everything", Data: `{"url":"a","method":"b","headers":{"Te":""},"payload":1}`, Pointers: []string{"/method", "/url", "/headers/Te"}},
	)
}

// receiver is an HTTP server that treats a request by its path, and notes the accepted requests.
type receiver struct {
	*httptest.Server

	mu         sync.Mutex
	taken      map[string]callbackstest.Received // by delivery id, the first
	attributes map[string]map[string]string      // of events in binary mode, by delivery id
	entered    map[string]bool                   // also of refused requests
	changed    chan struct{}                     // closed and replaced at each change
	gate       chan struct{}                     // while not nil, nothing is taken until it is closed
}

func newReceiver(t *testing.T) *receiver {
	r := &receiver{
		taken: map[string]callbackstest.Received{}, attributes: map[string]map[string]string{},
		entered: map[string]bool{}, changed: make(chan struct{}),
	}
	r.Server = httptest.NewServer(r)
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	id := req.Header.Get("webhook-id")
	r.mu.Lock()
	r.entered[id] = true
	gate := r.gate
	r.change()
	r.mu.Unlock()
	if gate != nil {
		<-gate
	}

	first, pause, _ := strings.Cut(strings.TrimPrefix(req.URL.Path, "/"), "/")
	switch status, err := strconv.Atoi(first); {
	case first == "hang-up":
		panic(http.ErrAbortHandler)
	case err == nil && status >= 300:
		if pause != "" {
			w.Header().Set("Retry-After", pause)
		}
		w.Header().Set("Location", "/")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, "can't take "+req.URL.String()+"\n as "+req.Header.Get("Authorization")+" with "+req.URL.Query().Get("token"))
		return
	case err == nil:
		defer w.WriteHeader(status)
	case first == "long":
		defer func() { _, _ = w.Write(make([]byte, 1<<20)) }()
	case first == "endless":
		defer func() {
			for err := error(nil); err == nil; _, err = w.Write(make([]byte, 64<<10)) {
			}
		}()
	}
	r.take(req, id, body)
}

func (r *receiver) take(req *http.Request, id string, body []byte) {
	seconds, _ := strconv.ParseInt(req.Header.Get("webhook-timestamp"), 10, 64)
	attempt, _ := strconv.Atoi(req.Header.Get("Carillon-Attempt"))
	key, _ := url.PathUnescape(req.Header.Get("Carillon-Key"))
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, again := r.taken[id]; !again {
		r.taken[id] = callbackstest.Received{
			ID: id, Tenant: told(req, "Carillon-Tenant"), Key: key, Timestamp: req.Header.Get("Carillon-Timestamp"), Attempt: attempt,
			SentAt: time.Unix(seconds, 0), Payload: string(body), ContentType: req.Header.Get("Content-Type"),
			Step: told(req, "Carillon-Step"), Subscriber: told(req, "Carillon-Subscriber"),
			TraceParent: strings.Join(req.Header.Values("traceparent"), " and "), TraceState: strings.Join(req.Header.Values("tracestate"), " and "),
			Headers: map[string]string{},
		}
		for name, values := range req.Header {
			r.taken[id].Headers[strings.ToLower(name)] = strings.Join(values, " and ")
		}
		r.attributes[id] = attributes(req.Header)
	}
	r.change()
}

// attributes returns the attributes of an event in binary mode, percent-decoded, with the bytes CloudEvents allows.
func attributes(header http.Header) map[string]string {
	all := map[string]string{}
	for name, values := range header {
		if attribute, ok := strings.CutPrefix(name, "Ce-"); ok {
			value, err := url.PathUnescape(strings.Join(values, " and "))
			if err != nil || strings.ContainsAny(values[0], `" `) {
				value = fmt.Sprintf("%q is not encoded as it must be", values)
			}
			all[strings.ToLower(attribute)] = value
		}
	}
	return all
}

// told returns a header's decoded value.
func told(req *http.Request, name string) string {
	values := req.Header.Values(name)
	if len(values) == 0 {
		return callbackstest.NotTold
	}
	value, err := url.PathUnescape(strings.Join(values, " and "))
	if err != nil {
		return err.Error()
	}
	return value
}

func (r *receiver) change() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// until waits until a condition holds, which is evaluated under the lock.
func (r *receiver) until(ctx context.Context, condition func() bool) error {
	for {
		r.mu.Lock()
		holds, changed := condition(), r.changed
		r.mu.Unlock()
		if holds {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (r *receiver) await(ctx context.Context, t *testing.T, id job.ID) (got callbackstest.Received) {
	t.Helper()
	err := r.until(ctx, func() (ok bool) {
		got, ok = r.taken[id.String()]
		return ok
	})
	if err != nil {
		t.Fatalf("delivery %s did not arrive", id)
	}
	return got
}

func (r *receiver) hang(t *testing.T) callbackstest.Hang {
	gate := make(chan struct{})
	set := func(g chan struct{}) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.gate = g
	}
	set(gate)
	return callbackstest.Hang{
		Held: func(id job.ID) {
			if err := r.until(t.Context(), func() bool { return r.entered[id.String()] }); err != nil {
				t.Error(errors.New("the delivery never came"))
			}
		},
		Resume: sync.OnceFunc(func() {
			set(nil)
			close(gate)
		}),
	}
}

// unused returns an address without a listener.
func unused(t *testing.T) string {
	server := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(server.Close)
	address := server.Listener.Addr().String()
	server.Close()
	return address
}
