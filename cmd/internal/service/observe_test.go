package service

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// TestProfilesAreForThisMachine: the listener for metrics may be beyond loopback, and requires no key.
func TestProfilesAreForThisMachine(t *testing.T) {
	for from, want := range map[string]int{
		"127.0.0.1:1234": 200, "[::1]:1234": 200, "[::ffff:127.0.0.1]:1234": 200,
		"10.1.2.3:1234": 403, "[2001:db8::1]:1234": 403, "@": 403, "": 403,
	} {
		for _, path := range []string{"/debug/pprof/", "/debug/pprof/goroutine?debug=1", "/debug/pprof/symbol"} {
			request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody)
			request.RemoteAddr, request.Host = from, "127.0.0.1:9090"
			answer := httptest.NewRecorder()
			profiles().ServeHTTP(answer, request)
			if answer.Code != want {
				t.Errorf("%s from %q is answered %d, want %d", path, from, answer.Code, want)
			}
			request.Host = "page.example:9090" // a name that the owner of a web page has given this machine's address
			answer = httptest.NewRecorder()
			profiles().ServeHTTP(answer, request)
			if answer.Code != http.StatusForbidden {
				t.Errorf("%s of %s from %q is answered %d, want 403", path, request.Host, from, answer.Code)
			}
		}
	}
}
