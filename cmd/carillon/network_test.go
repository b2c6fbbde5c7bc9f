package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/cmd/internal/cli"
	"github.com/carillon-scheduler/carillon/cmd/internal/listen/listentest"
)

// get asks for a URL and answers the status and the body.
func get(t *testing.T, client *http.Client, url string) (status int, body string) {
	t.Helper()
	answer, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(text)
}

// getReady returns the answer of /readyz at an address, when the service is ready, or a minute later.
func getReady(t *testing.T, client *http.Client, address string) (status int, body string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		status, body = get(t, client, address+"/readyz")
		if status != http.StatusServiceUnavailable || time.Now().After(end) {
			return status, body
		}
	}
}

// check runs the health check, with the service's variables.
func check(t *testing.T, environment map[string]string) (code int, output string) {
	t.Helper()
	for name, value := range environment {
		t.Setenv(name, value)
	}
	var out bytes.Buffer
	code = run([]string{"healthcheck"}, &out, &out)
	return code, out.String()
}

// TestServeTLS: a service with TLS takes jobs over HTTP/2, is warned of a certificate that expires soon, and uses one that
// replaces it.
func TestServeTLS(t *testing.T) {
	dir, ca := t.TempDir(), listentest.NewAuthority(t)
	files := ca.Issue(t, dir, listentest.Certificate{Ends: time.Now().Add(3 * 24 * time.Hour)})
	s := startWith(t, map[string]string{
		"listen": "127.0.0.1:0", "store": "sqlite:" + filepath.Join(dir, "carillon.db"),
		"tls-cert": files.CertFile, "tls-key": files.KeyFile,
	})
	address := s.address()
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: ca.Pool()}, ForceAttemptHTTP2: true}}
	defer client.CloseIdleConnections()
	body := `{"delay": "1h", "callback": {"type": "http", "data": {"url": "http://h"}}}`
	for i := range 2 { // the second on a connection that was used
		put, err := http.NewRequest(http.MethodPut, "https://"+address+"/v1/jobs/k", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		put.Header.Set("Content-Type", "application/json")
		answer, err := client.Do(put)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if answer.ProtoMajor != 2 || answer.StatusCode != []int{201, 200}[i] {
			t.Errorf("a put is answered %s, %s", answer.Proto, answer.Status)
		}
	}
	if _, ready := getReady(t, client, "https://"+address); !strings.Contains(ready, "the certificate of --tls-cert expires on") {
		t.Errorf("no warning of the certificate: %s", ready)
	}
	environment := map[string]string{"CARILLON_LISTEN": address, "CARILLON_TLS_CERT": files.CertFile}
	if code, output := check(t, environment); code != 0 || output != `{"status":"ok"}` {
		t.Errorf("healthcheck: exit code %d: %s", code, output)
	}

	ca.Issue(t, dir, listentest.Certificate{})
	asking, stop := context.WithCancel(t.Context())
	asked := make(chan struct{})
	go func() { // since files are checked when a client connects
		defer close(asked)
		for ; asking.Err() == nil; time.Sleep(20 * time.Millisecond) {
			if answer, err := client.Get("https://" + address + "/readyz"); err == nil {
				answer.Body.Close()
			}
		}
	}()
	s.logs("the TLS files were read again")
	stop()
	<-asked
	if _, ready := getReady(t, client, "https://"+address); strings.Contains(ready, "expires") {
		t.Errorf("the new certificate is not used: %s", ready)
	}
	s.stop()
	if code, output := check(t, environment); code != cli.ExitFailure {
		t.Errorf("healthcheck when it has ended: exit code %d: %s", code, output)
	}
}

// TestHealthcheckWithoutCertificate: a service that asks for client certificates is known to run by that.
func TestHealthcheckWithoutCertificate(t *testing.T) {
	dir, ca := t.TempDir(), listentest.NewAuthority(t)
	files := ca.Issue(t, dir, listentest.Certificate{})
	files.ClientCAFile = filepath.Join(dir, "clients.crt")
	ca.Write(t, files.ClientCAFile)
	s := startWith(t, map[string]string{
		"listen": "127.0.0.1:0", "store": "sqlite:" + filepath.Join(dir, "carillon.db"),
		"tls-cert": files.CertFile, "tls-key": files.KeyFile, "tls-client-ca": files.ClientCAFile,
	})
	environment := map[string]string{"CARILLON_LISTEN": s.address(), "CARILLON_TLS_CERT": files.CertFile, "CARILLON_TLS_CLIENT_CA": files.ClientCAFile}
	if code, output := check(t, environment); code != 0 || !strings.Contains(output, "asks for a client certificate") {
		t.Errorf("exit code %d: %s", code, output)
	}
	s.stop()
	if code, output := check(t, environment); code != cli.ExitFailure {
		t.Errorf("when it has ended: exit code %d: %s", code, output)
	}
}

// TestMetricsListener: metrics and profiles are at an address of their own and not at the API's; health is at both.
func TestMetricsListener(t *testing.T) {
	s := startWith(t, map[string]string{
		"listen": "127.0.0.1:0", "metrics-listen": "127.0.0.1:0", "store": "sqlite:" + filepath.Join(t.TempDir(), "carillon.db"),
	})
	api := s.url()
	s.logs(`msg="serving metrics"`)
	_, address, _ := strings.Cut(s.log.Text(), " address=")
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	for path, want := range map[string][2]int{ // at the API, and at the other address
		"/healthz": {200, 200}, "/readyz": {200, 200}, "/metrics": {404, 200},
		"/debug/pprof/": {404, 200}, "/debug/pprof/heap": {404, 200}, "/debug/pprof/goroutine?debug=1": {404, 200},
		"/debug/pprof/profile?seconds=1": {404, 200}, "/debug/pprof/cmdline": {404, 404},
		"/v1/jobs": {200, 404}, "/": {200, 404}, "/openapi.yaml": {200, 404},
	} {
		for i, base := range []string{api, "http://" + address} {
			if path == "/readyz" {
				getReady(t, client, base)
			}
			status, body := get(t, client, base+path)
			if status != want[i] {
				t.Errorf("%s%s answers %d, want %d: %.200s", base, path, status, want[i], body)
			}
		}
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/metrics", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	request.Host = "page.example" // a name that the owner of a web page has given this machine's address
	if answer, err := client.Do(request); err != nil || answer.StatusCode != http.StatusForbidden {
		t.Errorf("a request to %s is answered %v, %v; want 403", request.Host, answer, err)
	} else {
		answer.Body.Close()
	}
	if families := scrape(t, "http://"+address); families["carillon_ready"] == nil || families["carillon_http_request_duration_seconds"] == nil {
		t.Error("metrics are missing")
	}
	if code, output := check(t, map[string]string{"CARILLON_LISTEN": "127.0.0.1:1", "CARILLON_METRICS_LISTEN": address}); code != 0 {
		t.Errorf("healthcheck: exit code %d: %s", code, output)
	}
	s.stop()
	if conn, err := net.Dial("tcp", address); err == nil {
		conn.Close()
		t.Error("it still listens when it has ended")
	}
}

// TestMetricsPortTaken: another address may be free in a moment.
func TestMetricsPortTaken(t *testing.T) {
	taken := listening(t)
	var out bytes.Buffer
	code := run([]string{"serve", "--listen=127.0.0.1:0", "--store=sqlite:" + filepath.Join(t.TempDir(), "x.db"), "--metrics-listen=" + taken.Addr().String()}, &out, &out)
	if code != cli.ExitFailure || !strings.Contains(out.String(), "--metrics-listen=HOST:PORT") {
		t.Errorf("exit code %d: %s", code, &out)
	}
}

// TestLimitsOfClients: idle clients do not lock out others, and headers are bounded.
func TestLimitsOfClients(t *testing.T) {
	s := startWith(t, map[string]string{
		"listen": "127.0.0.1:0", "store": "sqlite:" + filepath.Join(t.TempDir(), "carillon.db"),
		"max-connections": "3", "max-header-bytes": "8192",
	})
	address := s.address()
	var idle []net.Conn
	for range 10 {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		idle = append(idle, conn)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	if status, body := get(t, client, "http://"+address+"/v1/jobs"); status != http.StatusOK {
		t.Errorf("another client is answered %d: %s", status, body)
	}
	_ = idle[0].SetReadDeadline(time.Now().Add(2 * time.Minute))
	if _, err := bufio.NewReader(idle[0]).ReadByte(); err == nil || strings.Contains(err.Error(), "timeout") {
		t.Errorf("the first that was idle is not closed: %v", err)
	}
	for size, want := range map[int]int{4000: 200, 20_000: 431} {
		request, err := http.NewRequest(http.MethodGet, "http://"+address+"/v1/jobs", nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("X-Large", strings.Repeat("a", size))
		answer, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if answer.StatusCode != want {
			t.Errorf("a header of %d bytes is answered %s", size, answer.Status)
		}
	}
	s.stop()
}

// TestWebhooksByDefault: the addresses that jobs may call follow from the one on which the API listens.
func TestWebhooksByDefault(t *testing.T) {
	for listen, want := range map[string]int{"127.0.0.1:0": http.StatusCreated, ":0": http.StatusUnprocessableEntity} {
		s := startWith(t, map[string]string{
			"listen": listen, "insecure-no-auth-beyond-loopback": "true", "store": "sqlite:" + filepath.Join(t.TempDir(), "carillon.db"),
		})
		_, port, err := net.SplitHostPort(s.address())
		if err != nil {
			t.Fatal(err)
		}
		answer, err := http.Post("http://127.0.0.1:"+port+"/v1/jobs", "application/json",
			strings.NewReader(`{"key": "k", "delay": "1h", "callback": {"type": "http", "data": {"url": "http://0x0a.1/hook"}}}`))
		if err != nil {
			t.Fatal(err)
		}
		var problem struct {
			Errors []struct{ Pointer, Message string }
		}
		err = json.NewDecoder(answer.Body).Decode(&problem)
		answer.Body.Close()
		if answer.StatusCode != want || err != nil {
			t.Errorf("at %s: %s, %v", listen, answer.Status, err)
		}
		if want == http.StatusUnprocessableEntity && (len(problem.Errors) != 1 || problem.Errors[0].Pointer != "/callback/data/url" ||
			!strings.Contains(problem.Errors[0].Message, "--webhook-networks")) {
			t.Errorf("at %s: %+v", listen, problem)
		}
		s.stop()
	}
}

// TestRulesAreForOldJobsToo: a callback that is not allowed is refused at its submission, and is not sent if it was
// submitted before the rules.
func TestRulesAreForOldJobsToo(t *testing.T) {
	var received atomic.Int32
	receiver := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { received.Add(1) }))
	defer receiver.Close()
	callbacks := map[string]string{
		"http":     fmt.Sprintf(`{"url": %q}`, receiver.URL),
		"kafka":    `{"topic": "salaries"}`,
		"rabbitmq": `{"queue": "salaries"}`,
	}
	pointers := map[string]string{"http": "/callback/data/url", "kafka": "/callback/data/topic", "rabbitmq": "/callback/data/queue"}
	call := func(method, url, body string) (status int, answer string) {
		t.Helper()
		request, err := http.NewRequest(method, url, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Content-Type", "application/json")
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return response.StatusCode, string(text)
	}
	settings := map[string]string{
		"listen": "127.0.0.1:0", "store": "sqlite:" + filepath.Join(t.TempDir(), "carillon.db"),
		"kafka-brokers": "127.0.0.1:1", "rabbitmq-url": "amqp://127.0.0.1:1",
	}
	before := startWith(t, settings)
	api := before.url()
	for kind, data := range callbacks {
		body := fmt.Sprintf(`{"delay": "1h", "callback": {"type": %q, "data": %s}}`, kind, data)
		if status, answer := call(http.MethodPut, api+"/v1/jobs/"+kind, body); status != http.StatusCreated {
			t.Errorf("without rules: %d: %s", status, answer)
		}
	}
	before.stop()

	settings["webhook-networks"] = "public"
	settings["kafka-allow"], settings["rabbitmq-allow"] = "acme=*", "default=queue:public,acme=queue:*"
	after := startWith(t, settings)
	api = after.url()
	for kind, data := range callbacks {
		body := fmt.Sprintf(`{"delay": "1h", "callback": {"type": %q, "data": %s}}`, kind, data)
		if status, answer := call(http.MethodPut, api+"/v1/jobs/new-"+kind, body); status != http.StatusUnprocessableEntity || !strings.Contains(answer, pointers[kind]) {
			t.Errorf("a new job: %d: %s", status, answer)
		}
		if status, answer := call(http.MethodPost, api+"/v1/jobs/"+kind+"/trigger", ""); status/100 != 2 {
			t.Errorf("an old job: %d: %s", status, answer)
		}
		for end := time.Now().Add(2 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
			_, dead := call(http.MethodGet, api+"/v1/dead-letters?key="+kind, "")
			if strings.Contains(dead, "--webhook-networks") || strings.Contains(dead, "--"+kind+"-allow") {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("it is not refused: %s", dead)
			}
		}
		refused := 0.
		for _, m := range scrape(t, api)["carillon_refused_total"].GetMetric() {
			if m.GetLabel()[0].GetValue() == kind {
				refused = m.GetCounter().GetValue()
			}
		}
		if refused != 1 {
			t.Errorf("%v callbacks of type %s are counted as refused, want 1", refused, kind)
		}
	}
	if n := received.Load(); n > 0 {
		t.Errorf("%d deliveries came", n)
	}
	after.stop()
}

// TestNothingSecretIsShown: secrets in a job, in a request and in options are in no line of the log, at any level, in
// no metric and in no error that a job shows, although the receiver quotes all its input.
func TestNothingSecretIsShown(t *testing.T) {
	secrets := []string{"s3cret-user", "s3cret-word", "s3cret-path", "s3cret-query", "s3cret-header", "s3cret-bearer", "s3cret-payload", "s3cret-key"}
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/s3cret-path/cut" {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(http.StatusInternalServerError)
		user, word, _ := r.BasicAuth()
		fmt.Fprint(w, user, " ", word, " ", r.Header.Get("X-Api-Key"), " ", r.URL.RawQuery, " ", r.Header)
	}))
	defer receiver.Close()
	var log bytes.Buffer
	s := startLogging(t, map[string]string{
		"listen": "127.0.0.1:0", "store": "sqlite:" + filepath.Join(t.TempDir(), "carillon.db"), "kafka-brokers": "127.0.0.1:1",
		"kafka-sasl-mechanism": "PLAIN", "kafka-username": "u", "kafka-password": "s3cret-word", "rabbitmq-url": "amqp://u:s3cret-word@127.0.0.1:1/",
	}, "debug", &log)
	api := s.url()
	host := strings.TrimPrefix(receiver.URL, "http://")
	shown := ""
	for i, url := range []string{
		"http://s3cret-user:s3cret-word@" + host + "/s3cret-path?token=s3cret-query", "http://" + host + "/s3cret-path/cut?s3cret-query",
		"http://nobody.invalid/s3cret-path?s3cret-query", "http://s3cret-user:s3cret-word@127.0.0.1:1/s3cret-path",
	} {
		key := fmt.Sprint("k", i)
		request, err := http.NewRequest(http.MethodPut, api+"/v1/jobs/"+key, strings.NewReader(fmt.Sprintf(`{"delay": "1ms", "retry": {"maxAttempts": 2, "initial": "1ms"},
			"callback": {"type": "http", "data": {"url": %q, "headers": {"X-Api-Key": "s3cret-header"}, "payload": "s3cret-payload"}}}`, url)))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Content-Type", "application/json")
		request.Header.Set("Authorization", "Bearer s3cret-bearer")
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(answer.Body)
		answer.Body.Close()
		if answer.StatusCode != http.StatusCreated {
			t.Fatalf("%s: %s", answer.Status, text)
		}
		lastError := regexp.MustCompile(`"(error|lastError)":\s*"(\\.|[^"\\])*"`)
		for end := time.Now().Add(2 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
			if _, dead := get(t, http.DefaultClient, api+"/v1/dead-letters?key="+key); lastError.MatchString(dead) {
				shown += strings.Join(lastError.FindAllString(dead, -1), "\n") + "\n"
				break
			}
			if time.Now().After(end) {
				t.Fatal("it is not given up")
			}
		}
	}
	_, metrics := get(t, http.DefaultClient, api+"/metrics")
	get(t, http.DefaultClient, api+"/nowhere?token=s3cret-query")
	s.stop()
	for name, text := range map[string]string{"the log": log.String(), "the metrics": metrics, "the errors of jobs": shown} {
		if len(text) < 100 {
			t.Errorf("%s are %q: this test shows nothing", name, text)
		}
		for _, secret := range secrets {
			if i := strings.Index(text, secret); i >= 0 {
				t.Errorf("%s shows %s: …%s…", name, secret, text[max(0, i-200):min(len(text), i+50)])
			}
		}
	}
	if !strings.Contains(shown, "***") {
		t.Errorf("nothing was quoted: %s", shown)
	}
}
