package service

import (
	"compress/gzip"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	collectorpb "go.opentelemetry.io/proto/otlp/collector/logs/v1"
	"google.golang.org/protobuf/proto"
)

// The sink gets every entry as a log, also if none is stored, with the headers that the environment names. When the
// service has stopped, all is there.
func TestHistorySink(t *testing.T) {
	var lock sync.Mutex
	var events []string
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var request collectorpb.ExportLogsServiceRequest
		z, err := gzip.NewReader(r.Body)
		if err != nil {
			t.Error(err)
			return
		}
		body, err := io.ReadAll(z)
		if err != nil || proto.Unmarshal(body, &request) != nil || r.URL.Path != "/v1/logs" || r.Header.Get("x-key") != "secret 1" {
			t.Errorf("%s %s with %v: %v", r.Method, r.URL, r.Header, err)
		}
		lock.Lock()
		defer lock.Unlock()
		for _, record := range request.ResourceLogs[0].ScopeLogs[0].LogRecords {
			events = append(events, record.EventName)
		}
	}))
	defer collector.Close()
	setOTEL(t, map[string]string{"OTEL_EXPORTER_OTLP_HEADERS": "x-key=secret%201"})
	s := startTraced(t, filepath.Join(t.TempDir(), "carillon.db"), "history", "0", "history-sink", collector.URL)
	s.call("PUT", "/v1/jobs/a", `{"delay":"1ms","callback":{"type":"http","data":{"url":"`+s.receiver.URL+`"}}}`)
	<-s.received
	s.stop()
	slices.Sort(events)
	if want := []string{"carillon.attempt.delivered", "carillon.change.created"}; !slices.Equal(events, want) {
		t.Errorf("the sink has %q, want %q", events, want)
	}
}

// An unusable sink is refused at the start, and the error names the fault.
func TestHistorySinkIsRefused(t *testing.T) {
	for name, c := range map[string][2]string{
		"--history-sink":              {"collector:4318", ""},
		"OTEL_EXPORTER_OTLP_HEADERS:": {"http://127.0.0.1:4318", "secret"},
	} {
		setOTEL(t, map[string]string{"OTEL_EXPORTER_OTLP_HEADERS": c[1]})
		options, err := Configure(map[string]string{"store": "memory:", "history-sink": c[0]})
		if err != nil {
			t.Fatal(err)
		}
		_, err = New(t.Context(), options, slog.New(slog.DiscardHandler))
		if err == nil || !strings.HasPrefix(err.Error(), name) || strings.Contains(err.Error(), "secret") {
			t.Errorf("the error is %v, want one of %s", err, name)
		}
	}
}
