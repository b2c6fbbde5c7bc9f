package otlp

import (
	"strings"
	"time"

	collectorpb "go.opentelemetry.io/proto/otlp/collector/logs/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	logspb "go.opentelemetry.io/proto/otlp/logs/v1"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	"google.golang.org/protobuf/proto"

	"github.com/carillon-scheduler/carillon/history"
	"github.com/carillon-scheduler/carillon/job"
)

var scope = &commonpb.InstrumentationScope{Name: "github.com/carillon-scheduler/carillon/history"}

func (s *Sink) resource() *resourcepb.Resource {
	var a attributes
	a.text("service.name", "carillon")
	a.text("service.version", s.cfg.Version)
	a.text("service.instance.id", s.cfg.Instance)
	return &resourcepb.Resource{Attributes: a}
}

// recordOf returns an entry as a log record. An attribute that traces have too has the same name as there.
func recordOf(e *history.Entry, now uint64) *logspb.LogRecord {
	kind := e.Kind.String()
	r := &logspb.LogRecord{
		TimeUnixNano: uint64(e.At.UnixNano()), ObservedTimeUnixNano: now, //nolint:gosec // after 1970
		SeverityNumber: logspb.SeverityNumber_SEVERITY_NUMBER_INFO, SeverityText: "INFO",
		Body: textValue(kind),
	}
	var a attributes
	a.text("carillon.job.tenant", e.Name.Tenant)
	a.text("carillon.job.key", e.Name.Key)
	if !e.Instant.IsZero() {
		a.text("carillon.delivery.id", e.DeliveryID().String())
		a.time("carillon.timestamp", e.Instant)
	}
	if e.Kind.Attempt() {
		r.EventName = "carillon.attempt." + kind
		a.number("carillon.attempt", e.Attempt)
		a.time("carillon.claimed_at", e.Claimed)
		a.seconds("carillon.duration", e.Took)
		a.text("carillon.destination", e.Destination)
		a.number("http.response.status_code", e.Status)
		a.text("carillon.error", history.CutError(e.Error))
		a.number("carillon.count", e.Count)
		a.time("carillon.next_attempt", e.Next)
		a.text("carillon.replica", e.Replica)
	} else {
		r.EventName = "carillon.change." + kind
		a.text("carillon.by", e.By)
		a.text("carillon.request.id", e.Request)
		a.text("carillon.replaced", string(e.From))
		a.texts("carillon.fields", e.Fields)
	}
	r.Attributes = a
	if e.Trace != [16]byte{} {
		r.TraceId = e.Trace[:]
	}
	switch e.Kind {
	case history.Retried, history.Released, history.Missed, history.Unknown:
		r.SeverityNumber, r.SeverityText = logspb.SeverityNumber_SEVERITY_NUMBER_WARN, "WARN"
	case history.Buried:
		r.SeverityNumber, r.SeverityText = logspb.SeverityNumber_SEVERITY_NUMBER_ERROR, "ERROR"
	default:
	}
	return r
}

// attributes are the attributes of a record. Empty values are left out.
type attributes []*commonpb.KeyValue

func (a *attributes) add(name string, value *commonpb.AnyValue) {
	*a = append(*a, &commonpb.KeyValue{Key: name, Value: value})
}

func (a *attributes) text(name, value string) {
	if value != "" {
		a.add(name, textValue(value))
	}
}

func (a *attributes) texts(name string, values []string) {
	if len(values) == 0 {
		return
	}
	all := &commonpb.ArrayValue{}
	for _, v := range values {
		all.Values = append(all.Values, textValue(v))
	}
	a.add(name, &commonpb.AnyValue{Value: &commonpb.AnyValue_ArrayValue{ArrayValue: all}})
}

func (a *attributes) number(name string, n int) {
	if n != 0 {
		a.add(name, &commonpb.AnyValue{Value: &commonpb.AnyValue_IntValue{IntValue: int64(n)}})
	}
}

func (a *attributes) seconds(name string, d time.Duration) {
	if d != 0 {
		a.add(name, &commonpb.AnyValue{Value: &commonpb.AnyValue_DoubleValue{DoubleValue: d.Seconds()}})
	}
}

func (a *attributes) time(name string, at time.Time) {
	if !at.IsZero() {
		a.text(name, job.FormatTime(at))
	}
}

func textValue(text string) *commonpb.AnyValue {
	text = strings.ToValidUTF8(text, "�") // else the whole request could not be encoded
	return &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: text}}
}

// refusedIn returns the number of refused records in a collector's answer.
func refusedIn(answer []byte) int {
	var response collectorpb.ExportLogsServiceResponse
	if err := proto.Unmarshal(answer, &response); err != nil {
		return 0 // it has taken them; the answer has another form
	}
	return int(max(0, response.GetPartialSuccess().GetRejectedLogRecords()))
}
