package main

import (
	"bytes"
	"strings"
	"testing"
)

// The start warns of a variable that resembles one of an option, and not of those that other programs set.
func TestUnknownVariables(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, c := range []struct {
		variable string
		want     string // the warning; empty for none
	}{
		{"CARILLON_STOER=sqlite:x.db", "is it meant to be CARILLON_STORE?"},
		{"CARILLON_STORE_URL=sqlite:hunter2.db", "is it meant to be CARILLON_STORE?"},
		{"CARILLON_STORE_FIEL=/hunter2", "is it meant to be CARILLON_STORE_FILE?"},
		{"CARILLON_RABBITMQ_ULR=amqp://user:hunter2@host", "is it meant to be CARILLON_RABBITMQ_URL?"},
		{"CARILLON_LOGLEVEL=debug", "is it meant to be CARILLON_LOG_LEVEL?"},
		{"CARILLON_COUNT=3", `"carillon serve --help" names`}, // an option, but one that has no variable
		{"CARILLON_PORT=8080", `"carillon serve --help" names`},
		{"CARILLON_COLOUR=hunter2", `"carillon serve --help" names`},

		{"CARILLON_LOG_LEVEL=info", ""},
		{"CARILLON_TICK_FILE=", ""},
		{"CARILLON_TEST_REDIS_URL=redis://host", ""},
		{"OTEL_SERVICE_NAME=bells", ""},
		{"CARILLONS=3", ""},
		// The variables that Kubernetes sets for a service called carillon, and for one called carillon-api.
		{"CARILLON_SERVICE_HOST=10.0.0.1", ""},
		{"CARILLON_SERVICE_PORT=8080", ""},
		{"CARILLON_SERVICE_PORT_HTTP=8080", ""},
		{"CARILLON_PORT=tcp://10.0.0.1:8080", ""},
		{"CARILLON_PORT_8080_TCP=tcp://10.0.0.1:8080", ""},
		{"CARILLON_PORT_8080_TCP_PROTO=tcp", ""},
		{"CARILLON_PORT_8080_TCP_PORT=8080", ""},
		{"CARILLON_PORT_8080_TCP_ADDR=10.0.0.1", ""},
		{"CARILLON_API_SERVICE_HOST=10.0.0.1", ""},
		{"CARILLON_API_PORT=tcp://10.0.0.1:8080", ""},
		{"CARILLON_API_PORT_8080_TCP_ADDR=10.0.0.1", ""},
	} {
		t.Run(c.variable, func(t *testing.T) {
			name, value, _ := strings.Cut(c.variable, "=")
			t.Setenv(name, value)
			var stdout, stderr bytes.Buffer
			// An address that no machine has ends it when all else is well.
			run([]string{
				"serve", "--listen=203.0.113.1:1", "--insecure-no-auth-beyond-loopback", "--store=memory:", "--ui=off", // quickly
			}, &stdout, &stderr)
			told := strings.Count(stderr.String(), name+" belongs to no option")
			switch log := strings.ReplaceAll(stderr.String(), `\"`, `"`); {
			case c.want == "" && told > 0:
				t.Errorf("it is told of:\n%s", log)
			case c.want != "" && (told != 1 || !strings.Contains(log, c.want)):
				t.Errorf("it is told of %d times, want once, and %q:\n%s", told, c.want, log)
			}
			if !strings.Contains(stderr.String(), "--listen") {
				t.Errorf("it does not start:\n%s", &stderr)
			}
			if strings.Contains(stderr.String(), "hunter2") {
				t.Errorf("its value is told:\n%s", &stderr)
			}
		})
	}
}
