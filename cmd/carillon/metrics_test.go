package main

import (
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// TestMetrics runs a service, has it deliver something, and reads its metrics as Prometheus does. All that are
// documented are there, with the type and labels that they are said to have, and no others.
func TestMetrics(t *testing.T) {
	receiver := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer receiver.Close()
	s := startWith(t, map[string]string{
		"listen": "127.0.0.1:0", "store": "sqlite:" + filepath.Join(t.TempDir(), "carillon.db"), "objective": "99.9%<1h,acme:50%<1s",
		"rabbitmq-url": "amqp://127.0.0.1:1", "submit-rabbitmq-queue": "acme=jobs",
	})
	api := s.url()
	put(t, api, "now", fmt.Sprintf(`{"delay": "1ms", "callback": {"type": "http", "data": {"url": %q}}}`, receiver.URL))
	put(t, api, "later", fmt.Sprintf(`{"delay": "1h", "callback": {"type": "http", "data": {"url": %q}}}`, receiver.URL))

	var families map[string]*dto.MetricFamily
	value := func(name string, labels ...string) float64 {
		for _, m := range families[name].GetMetric() {
			var values []string
			for _, l := range m.GetLabel() {
				values = append(values, l.GetValue())
			}
			if slices.Equal(values, labels) {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
		return math.NaN()
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		families = scrape(t, api)
		if value("carillon_deliveries_total", "delivered", "http") == 1 && value("carillon_ready") == 1 &&
			value("carillon_replicas") == 1 && value("carillon_in_flight") == 0 &&
			value("carillon_http_request_duration_seconds", "PUT", "/v1/jobs/:key", "201") == 2 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the delivery does not show: %v", families)
		}
	}
	for _, c := range []struct {
		want   float64
		name   string
		labels []string
	}{
		{1, "carillon_deviation_seconds", []string{"http"}},
		{1, "carillon_delivery_duration_seconds", []string{"http"}},
		{1, "carillon_objective_occurrences_total", []string{"99.9%<1h", "(all)"}},
		{0, "carillon_objective_occurrences_total", []string{"50%<1s", "acme"}},
		{0.999, "carillon_objective_target", []string{"99.9%<1h", "(all)"}},
		{1, "carillon_claims_total", nil},
		{1, "carillon_claim_batch_size", nil},
		{0, "carillon_intake_messages_total", []string{"applied", "queue jobs"}},
		{256, "carillon_concurrency", nil},
		{0, "carillon_dead_letters", nil},
		{2, "carillon_store_duration_seconds", []string{"put"}},
		{0, "carillon_store_errors_total", []string{"claim"}},
	} {
		if got := value(c.name, c.labels...); got != c.want {
			t.Errorf("%s of %q is %v, want %v", c.name, c.labels, got, c.want)
		}
	}
	for _, name := range []string{"go_goroutines", "process_cpu_seconds_total"} {
		if families[name] == nil {
			t.Errorf("there is no %s", name)
		}
	}

	exposed := map[string]string{}
	for name, family := range families {
		if strings.HasPrefix(name, "carillon_") {
			exposed[name] = described(family)
		}
	}
	documented := documentedMetrics(t)
	for _, name := range slices.Sorted(maps.Keys(documented)) {
		if exposed[name] != documented[name] {
			t.Errorf("%s is documented as %q, and is %q", name, documented[name], exposed[name])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(exposed)) {
		if documented[name] == "" {
			t.Errorf("%s is not documented", name)
		}
	}
	s.stop()
}

// TestMetricsOfTwo: two services in one process don't share their metrics, nor get in each other's way.
func TestMetricsOfTwo(t *testing.T) {
	for range 2 {
		s := start(t, "sqlite:"+filepath.Join(t.TempDir(), "carillon.db"), 0)
		defer s.stop()
		api := s.url()
		put(t, api, "k", `{"delay": "1h", "callback": {"type": "http", "data": {"url": "http://127.0.0.1:1/"}}}`)
		n := 0
		for _, m := range scrape(t, api)["carillon_store_duration_seconds"].GetMetric() {
			if m.GetLabel()[0].GetValue() == "put" {
				n = int(m.GetHistogram().GetSampleCount())
			}
		}
		if n != 1 {
			t.Errorf("%d puts are counted, want 1", n)
		}
	}
}

// url waits until the service is ready to be asked, and answers where.
func (s *started) url() string {
	s.Helper()
	for s.log.Scan() {
		if address := regexp.MustCompile(`msg=serving address=(\S+)`).FindStringSubmatch(s.log.Text()); address != nil {
			return "http://" + address[1]
		}
	}
	s.Fatalf("it does not serve: %v", <-s.ended)
	return ""
}

func put(t *testing.T, api, key, body string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPut, api+"/v1/jobs/"+key, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if answer, err := io.ReadAll(response.Body); err != nil || response.StatusCode != http.StatusCreated {
		t.Fatalf("the put is answered with %s: %s, %v", response.Status, answer, err)
	}
}

func scrape(t *testing.T, api string) map[string]*dto.MetricFamily {
	t.Helper()
	response, err := http.Get(api + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		t.Fatalf("/metrics answers %s", response.Status)
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return families
}

// described returns the type and the labels of a metric in the documentation's form.
func described(family *dto.MetricFamily) string {
	labels := map[string]bool{}
	for _, m := range family.GetMetric() {
		for _, l := range m.GetLabel() {
			labels["`"+l.GetName()+"`"] = true
		}
	}
	return strings.ToLower(family.GetType().String()) + " " + strings.Join(slices.Sorted(maps.Keys(labels)), ", ")
}

// documentedMetrics returns the types and labels of the metrics in the tables of docs/metrics.md.
func documentedMetrics(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "metrics.md"))
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]string{}
	row := regexp.MustCompile("(?m)^\\| `(carillon_\\w+)` \\| (\\w+) \\|([^|]*)\\| [^|]+ \\| [^|]+ \\|[^|]*\\|$")
	for _, m := range row.FindAllStringSubmatch(string(text), -1) {
		documented[m[1]] = m[2] + " " + strings.TrimSpace(m[3])
	}
	if n := strings.Count(string(text), "\n| `carillon_"); n != len(documented) {
		t.Errorf("%d of %d rows can be read", len(documented), n)
	}
	return documented
}
