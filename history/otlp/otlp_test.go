package otlp_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/logs/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	logspb "go.opentelemetry.io/proto/otlp/logs/v1"
	"google.golang.org/protobuf/proto"

	"github.com/carillon-scheduler/carillon/history"
	"github.com/carillon-scheduler/carillon/history/otlp"
	"github.com/carillon-scheduler/carillon/job"
)

var epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// collector takes logs by OTLP over HTTP.
type collector struct {
	*testing.T
	url string

	lock     sync.Mutex
	answers  []int // statuses of the next requests; 0 takes them
	rejected int64 // the number of records that its answer reports as refused
	records  []*logspb.LogRecord
	resource []*commonpb.KeyValue
	header   http.Header
	requests int
	hold     chan struct{} // requests wait until it is closed
}

func newCollector(t *testing.T) *collector {
	c := &collector{T: t}
	server := httptest.NewServer(c)
	t.Cleanup(server.Close)
	c.url = server.URL
	return c
}

func (c *collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if c.hold != nil {
		<-c.hold
	}
	c.lock.Lock()
	defer c.lock.Unlock()
	c.requests++
	if len(c.answers) > 0 {
		status := c.answers[0]
		c.answers = c.answers[1:]
		if status != 0 {
			w.WriteHeader(status)
			return
		}
	}
	var request collectorpb.ExportLogsServiceRequest
	z, err := gzip.NewReader(r.Body)
	if err != nil {
		c.Error(err)
		return
	}
	body, err := io.ReadAll(z)
	if err != nil || proto.Unmarshal(body, &request) != nil || r.URL.Path != "/v1/logs" || r.Header.Get("Content-Type") != "application/x-protobuf" {
		c.Errorf("%s %s: %d bytes, %v", r.Method, r.URL, len(body), err)
	}
	c.header = r.Header
	for _, of := range request.ResourceLogs {
		c.resource = of.Resource.Attributes
		for _, scope := range of.ScopeLogs {
			c.records = append(c.records, scope.LogRecords...)
		}
	}
	answer, err := proto.Marshal(&collectorpb.ExportLogsServiceResponse{PartialSuccess: &collectorpb.ExportLogsPartialSuccess{RejectedLogRecords: c.rejected}})
	if err != nil {
		c.Error(err)
	}
	_, _ = w.Write(answer)
}

func (c *collector) got() int {
	c.lock.Lock()
	defer c.lock.Unlock()
	return len(c.records)
}

// sink makes a sink, and returns a function that reads its metrics.
func (c *collector) sink(log io.Writer) (s *otlp.Sink, count func() (sent, dropped int)) {
	c.Helper()
	registry := prometheus.NewRegistry()
	s, err := otlp.New(otlp.Config{
		URL: c.url, Headers: map[string]string{"x-key": "k"}, Version: "v1", Instance: "i1", Registerer: registry,
		Logger: slog.New(slog.NewTextHandler(log, nil)),
	})
	if err != nil {
		c.Fatal(err)
	}
	return s, func() (sent, dropped int) {
		families, err := registry.Gather()
		if err != nil || len(families) != 2 {
			c.Fatalf("the metrics are %v, %v", families, err)
		}
		return int(families[1].GetMetric()[0].GetCounter().GetValue()), int(families[0].GetMetric()[0].GetCounter().GetValue())
	}
}

func text(attributes []*commonpb.KeyValue) string {
	var all []string
	for _, a := range attributes {
		value := a.Value.GetStringValue()
		switch v := a.Value.Value.(type) {
		case *commonpb.AnyValue_IntValue:
			value = fmt.Sprint(v.IntValue)
		case *commonpb.AnyValue_DoubleValue:
			value = fmt.Sprint(v.DoubleValue)
		case *commonpb.AnyValue_ArrayValue:
			value = ""
			for _, one := range v.ArrayValue.Values {
				value += one.GetStringValue() + ";"
			}
		}
		all = append(all, strings.TrimPrefix(a.Key, "carillon.")+"="+value)
	}
	return strings.Join(all, " ")
}

// A collector gets each entry with all its fields.
func TestRecords(t *testing.T) {
	c := newCollector(t)
	var log bytes.Buffer
	s, count := c.sink(&log)
	name := job.Name{Tenant: "acme", Key: "k"}
	failed := &history.Entry{
		Name: name, Kind: history.Retried, At: epoch.Add(time.Second), Instant: epoch, Attempt: 2, Claimed: epoch.Add(time.Millisecond),
		Took: 1500 * time.Microsecond, Destination: "http example.com", Status: 503, Next: epoch.Add(time.Minute), Replica: "r1", Trace: [16]byte{1, 15: 2},
	}
	long := &history.Entry{Name: name, Kind: history.Buried, At: epoch, Instant: epoch, Attempt: 1, Error: strings.Repeat("x", 1000) + "\xff"}
	broken := &history.Entry{Name: name, Kind: history.Unknown, At: epoch, Instant: epoch, Attempt: 1, Error: "\xff"}
	change := &history.Entry{Name: name, Kind: history.Replaced, At: epoch, By: "key-1", Request: "q", From: "R0", Fields: []string{"callback", "schedule"}}
	s.Record(failed, long)
	s.Record(broken, change, &history.Entry{Name: name, At: epoch, Instant: epoch, Attempt: 1})
	_ = s.Close()
	_ = s.Close()
	id := failed.DeliveryID().String()
	want := []string{
		"WARN carillon.attempt.retried job.tenant=acme job.key=k delivery.id=" + id + " timestamp=2026-03-01T12:00:00.000Z attempt=2 " +
			"claimed_at=2026-03-01T12:00:00.001Z duration=0.0015 destination=http example.com http.response.status_code=503 next_attempt=2026-03-01T12:01:00.000Z replica=r1",
		"ERROR carillon.attempt.buried job.tenant=acme job.key=k delivery.id=" + id + " timestamp=2026-03-01T12:00:00.000Z attempt=1 error=" + strings.Repeat("x", history.MaxError-3) + "…",
		"WARN carillon.attempt.unknown job.tenant=acme job.key=k delivery.id=" + id + " timestamp=2026-03-01T12:00:00.000Z attempt=1 error=�",
		"INFO carillon.change.replaced job.tenant=acme job.key=k by=key-1 request.id=q replaced=R0 fields=callback;schedule;",
		"INFO carillon.attempt.delivered job.tenant=acme job.key=k delivery.id=" + id + " timestamp=2026-03-01T12:00:00.000Z attempt=1",
	}
	var got []string
	for _, r := range c.records {
		got = append(got, r.SeverityText+" "+r.EventName+" "+text(r.Attributes))
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if first := c.records[0]; first.TimeUnixNano != uint64(failed.At.UnixNano()) || !bytes.Equal(first.TraceId, failed.Trace[:]) || first.Body.GetStringValue() != "retried" || c.records[1].TraceId != nil {
		t.Errorf("the first record is %v", first)
	}
	if who := text(c.resource); who != "service.name=carillon service.version=v1 service.instance.id=i1" || c.header.Get("x-key") != "k" {
		t.Errorf("it is sent by %s, with %v", who, c.header)
	}
	if sent, dropped := count(); sent != 5 || dropped != 0 || log.Len() > 0 {
		t.Errorf("%d are sent and %d dropped; the log is %s", sent, dropped, &log)
	}
}

func entries(n int) []*history.Entry {
	all := make([]*history.Entry, n)
	for i := range all {
		all[i] = &history.Entry{Name: job.Name{Tenant: "acme", Key: fmt.Sprint(i)}, At: epoch, Instant: epoch, Attempt: 1}
	}
	return all
}

// Entries that a collector can't take now are sent again. Entries that it refuses are counted and not sent again.
func TestRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		answers       []int
		rejected      int64
		sent, dropped int
	}{
		"busy":             {answers: []int{503}, sent: 10},
		"too many":         {answers: []int{429}, sent: 10},
		"refused":          {answers: []int{400}, dropped: 10},
		"elsewhere":        {answers: []int{307}, dropped: 10},
		"partly":           {rejected: 3, sent: 7, dropped: 3},
		"more than it got": {rejected: 30, dropped: 10},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			to := newCollector(t)
			to.answers, to.rejected = c.answers, c.rejected
			var log bytes.Buffer
			s, count := to.sink(&log)
			s.Record(entries(10)...)
			_ = s.Close()
			if sent, dropped := count(); sent != c.sent || dropped != c.dropped {
				t.Errorf("%d are sent and %d dropped, want %d and %d", sent, dropped, c.sent, c.dropped)
			}
			if told := log.Len() > 0; told != (c.answers != nil) {
				t.Errorf("the log is %s", &log)
			}
		})
	}
}

// A collector that takes nothing does not delay the recording of entries: those beyond the queue are dropped and
// counted. Once it takes entries again, it gets those of the queue.
func TestSlowCollector(t *testing.T) {
	c := newCollector(t)
	c.hold = make(chan struct{})
	s, count := c.sink(io.Discard)
	const many = 100_000
	done := make(chan struct{})
	go func() {
		defer close(done)
		for some := range slices.Chunk(entries(many), 500) {
			s.Record(some...)
		}
	}()
	<-done // it does not wait for the collector, which waits for the test
	_, lost := count()
	if lost < many/2 || lost >= many {
		t.Errorf("%d of %d entries are dropped", lost, many)
	}
	close(c.hold)
	for c.got() < many-lost {
		time.Sleep(time.Millisecond)
	}
	_ = s.Close()
	s.Record(entries(1)...)
	if sent, dropped := count(); sent != many-lost || dropped != lost+1 {
		t.Errorf("%d are sent and %d dropped", sent, dropped)
	}
}

// Close drops and counts the entries that can't be sent.
func TestCloseWithoutACollector(t *testing.T) {
	c := newCollector(t)
	s, count := c.sink(io.Discard)
	c.answers = slices.Repeat([]int{503}, 100)
	s.Record(entries(5000)...)
	_ = s.Close()
	if sent, dropped := count(); sent+dropped != 5000 || dropped == 0 {
		t.Errorf("%d are sent and %d dropped", sent, dropped)
	}
}

func TestConfiguration(t *testing.T) {
	for text, want := range map[string]string{
		"http://c:4318": "http://c:4318/v1/logs", "https://c/": "https://c/v1/logs", "https://c/otlp/v1/logs?a=b": "https://c/otlp/v1/logs?a=b",
		"c:4318": "", "": "", "grpc://c:4317": "", "http://": "", "http://user:secret@c": "", "http://%zz": "",
	} {
		to, err := otlp.CheckURL(text)
		if (err == nil) != (want != "") || err == nil && to.String() != want {
			t.Errorf("%s is %v, %v", text, to, err)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("%v tells the password", err)
		}
	}
	if _, err := otlp.New(otlp.Config{URL: "c"}); err == nil {
		t.Error("a sink without a URL is made")
	}
	headers, err := otlp.ParseHeaders("x-key=a%20b, Authorization=Basic%20YQ==,")
	if err != nil || len(headers) != 2 || headers["x-key"] != "a b" || headers["Authorization"] != "Basic YQ==" {
		t.Errorf("headers are %q, %v", headers, err)
	}
	for _, text := range []string{"secret", "=secret", "a=%zzsecret"} {
		if _, err := otlp.ParseHeaders(text); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", text, err)
		}
	}
	var none *otlp.Sink
	none.Record(entries(1)...)
	_ = none.Close()
}
