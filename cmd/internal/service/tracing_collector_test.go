package service

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
)

// collector takes spans by OTLP.
type collector struct {
	collectorpb.UnimplementedTraceServiceServer
	http, grpc string // URLs

	mu       sync.Mutex
	spans    map[string]*tracepb.Span // by their names
	resource map[string]string        // of whom they are
	key      string                   // the header x-key
}

func newCollector(t *testing.T) *collector {
	t.Helper()
	c := &collector{spans: map[string]*tracepb.Span{}, resource: map[string]string{}}
	web := httptest.NewServer(http.HandlerFunc(c.take))
	t.Cleanup(web.Close)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	collectorpb.RegisterTraceServiceServer(server, c)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	c.http, c.grpc = web.URL, "http://"+listener.Addr().(*net.TCPAddr).String()
	return c
}

// take handles exports by HTTP.
func (c *collector) take(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	var request collectorpb.ExportTraceServiceRequest
	if err := proto.Unmarshal(body, &request); err != nil || r.URL.Path != "/v1/traces" {
		http.Error(w, "not as it must be", http.StatusBadRequest)
		return
	}
	c.note(&request, r.Header.Get("x-key"))
}

// Export handles exports by gRPC.
func (c *collector) Export(ctx context.Context, request *collectorpb.ExportTraceServiceRequest) (*collectorpb.ExportTraceServiceResponse, error) {
	incoming, _ := metadata.FromIncomingContext(ctx)
	c.note(request, strings.Join(incoming.Get("x-key"), " and "))
	return &collectorpb.ExportTraceServiceResponse{}, nil
}

func (c *collector) note(request *collectorpb.ExportTraceServiceRequest, key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.key = key
	for _, r := range request.ResourceSpans {
		for _, a := range r.Resource.Attributes {
			c.resource[a.Key] = a.Value.GetStringValue()
		}
		for _, scope := range r.ScopeSpans {
			for _, span := range scope.Spans {
				c.spans[span.Name] = span
			}
		}
	}
}

func (c *collector) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.spans)
}

// span returns the exported span of a name.
func (c *collector) span(t *testing.T, name string) *tracepb.Span {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.spans[name] == nil {
		t.Fatalf("there is no span %q among %v", name, c.spans)
	}
	return c.spans[name]
}

// lockedLog gathers the log.
type lockedLog struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
