//go:build services

package main_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// TestDashboardQueries has Prometheus, with the configuration that is provisioned, scrape replicas that have something
// to do. Each query of the dashboard and of the alerts then has data, from metrics that the program has.
func TestDashboardQueries(t *testing.T) {
	t.Parallel()
	c := stores[0].cluster(t)
	kafka := startKafka(t, "submissions")
	c.start(2, append(kafka.options(), "--objective=99.9%<1s")...)
	p := startPrometheus(t, c.replicas)
	var rules struct{ Groups []struct{ Rules []alertRule } }
	p.get(t, "/api/v1/rules?type=alert", &rules)
	if len(rules.Groups) != 1 {
		t.Fatalf("%d groups of alerts", len(rules.Groups))
	}
	queries := dashboardQueries(readDashboard(t))
	for _, r := range rules.Groups[0].Rules {
		queries = append(queries, query{of: r.Name, expr: r.Query})
	}
	if len(queries) < 50 {
		t.Fatalf("only %d queries are found", len(queries))
	}

	// The receiver's status is in the path: 200 is a delivery, 500 is retried, and 410 is given up at once.
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status, _ := strconv.Atoi(strings.TrimPrefix(r.URL.Path, "/"))
		w.WriteHeader(status)
	}))
	defer receiver.Close()
	lacking := queries
	for n, end := 0, time.Now().Add(patience); len(lacking) > 0; n++ {
		if time.Now().After(end) {
			for _, q := range lacking {
				t.Errorf("%s has no data: %s", q.of, q.expr)
			}
			t.FailNow()
		}
		for _, answer := range []string{"200", "500", "410"} {
			callback := map[string]any{"type": "http", "data": map[string]any{"url": receiver.URL + "/" + answer}}
			c.call(c.replicas[n%2], http.MethodPut, fmt.Sprint("/v1/jobs/", answer, "-", n),
				map[string]any{"delay": "1ms", "callback": callback}, http.StatusCreated)
		}
		c.call(c.replicas[n%2], http.MethodGet, "/v1/jobs/none", nil, http.StatusNotFound)
		askByAnotherName(t, c.replicas[n%2].url+"/v1/jobs")
		if err := kafka.client.ProduceSync(t.Context(), kgo.StringRecord("no job")).FirstErr(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second) // until the next scrape
		lacking = slices.DeleteFunc(slices.Clone(lacking), func(q query) bool { return p.hasData(t, q) })
	}

	var names []string
	p.get(t, "/api/v1/label/__name__/values", &names)
	for _, q := range queries {
		for _, name := range metricNames(q.expr) {
			if !slices.Contains(names, name) {
				t.Errorf("%s asks for %s, which there is not: %s", q.of, name, q.expr)
			}
		}
	}
	p.get(t, "/api/v1/rules?type=alert", &rules)
	documented := documentedAlerts(t)
	for _, r := range rules.Groups[0].Rules {
		if r.Health != "ok" {
			t.Errorf("%s is not evaluated: %s: %s", r.Name, r.Health, r.LastError)
		}
		is := fmt.Sprintf("%s, %s", time.Duration(r.Duration)*time.Second, r.Labels["severity"])
		if documented[r.Name] != is {
			t.Errorf("%s is documented as %q, and is %q", r.Name, documented[r.Name], is)
		}
		delete(documented, r.Name)
	}
	for name := range documented {
		t.Errorf("%s is documented, and is no alert", name)
	}
}

// askByAnotherName makes a request that is refused: without keys, the service answers to no name but localhost.
func askByAnotherName(t *testing.T, url string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	request.Host = "carillon.example.com"
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
	if answer.StatusCode != http.StatusForbidden {
		t.Errorf("by another name it is answered with %d", answer.StatusCode)
	}
}

// TestAlerts: Prometheus takes its configuration, and each alert fires when it should, and only then.
func TestAlerts(t *testing.T) {
	t.Parallel()
	promtool := needed(t, "CARILLON_TEST_PROMTOOL")
	for _, args := range [][]string{
		{"check", "config", "prometheus.yml"}, {"check", "rules", "rules.yml"}, {"test", "rules", "rules_test.yml"},
	} {
		cmd := exec.Command(promtool, args...)
		cmd.Dir = filepath.Join(docker, "prometheus")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	tests := readDocker(t, "prometheus/rules_test.yml")
	alerts := regexp.MustCompile(`(?m)^ +- alert: (\w+)$`).FindAllStringSubmatch(readDocker(t, "prometheus/rules.yml"), -1)
	if len(alerts) == 0 {
		t.Error("there are no alerts")
	}
	for _, a := range alerts {
		if !regexp.MustCompile(`alertname: ` + a[1] + `, exp_alerts: \[\]`).MatchString(tests) {
			t.Errorf("no test shows when %s does not fire", a[1])
		}
		if !regexp.MustCompile(`alertname: ` + a[1] + `\n +exp_alerts:\n`).MatchString(tests) {
			t.Errorf("no test shows when %s fires", a[1])
		}
	}
}

// alertRule is an alert rule in the form of Prometheus.
type alertRule struct {
	Name, Query, Health, LastError string
	Duration                       float64 // seconds
	Labels                         map[string]string
}

// query is one in PromQL, of a panel or an alert.
type query struct {
	of, expr string
	labels   []string // that its legend shows
}

// dashboardQueries returns the queries of a dashboard, with those of its variables, in the form in which Grafana makes
// them.
func dashboardQueries(d dashboard) (queries []query) {
	for _, v := range d.Templating.List {
		if v.Type != "query" {
			continue
		}
		text := fmt.Sprint(v.Query.(map[string]any)["query"])
		parts := regexp.MustCompile(`^label_values\((.+), (\w+)\)$`).FindStringSubmatch(text)
		queries = append(queries, query{"the variable " + v.Name, "group by (" + parts[2] + ") (" + parts[1] + ")", parts[2:]})
	}
	values := strings.NewReplacer("$__rate_interval", "1m", "$instance", ".*")
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			q := query{of: "the panel " + p.Title, expr: values.Replace(target.Expr)}
			for _, label := range regexp.MustCompile(`\{\{(\w+)\}\}`).FindAllStringSubmatch(target.LegendFormat, -1) {
				q.labels = append(q.labels, label[1])
			}
			queries = append(queries, q)
		}
	}
	return queries
}

// metricNames lists the metrics of a query: the words in it that are no labels, functions, operators or durations.
func metricNames(expr string) (names []string) {
	for _, part := range []string{`\{[^}]*\}`, `\[[^\]]*\]`, `\b(by|without|on|ignoring)\s*\([^)]*\)`, `(?:^|[^\w:])\d+[a-z]+\b`} {
		expr = regexp.MustCompile(part).ReplaceAllString(expr, " ")
	}
	words := regexp.MustCompile(`\b([a-zA-Z_:][\w:]*)\b\s*(\(?)`)
	for _, m := range words.FindAllStringSubmatch(expr, -1) {
		if m[2] == "" && !slices.Contains([]string{"and", "or", "unless", "bool", "offset"}, m[1]) {
			names = append(names, m[1])
		}
	}
	return names
}

// documentedAlerts returns the alerts in the table of docs/metrics.md, with their wait and severity.
func documentedAlerts(t *testing.T) map[string]string {
	t.Helper()
	documented := map[string]string{}
	row := regexp.MustCompile("(?m)^\\| `(Carillon\\w+)` \\| (\\w+) \\|[^|]+\\| (\\w+) \\|")
	for _, m := range row.FindAllStringSubmatch(readDocker(t, "../docs/metrics.md"), -1) {
		pending, err := time.ParseDuration(m[3])
		if err != nil {
			t.Error(err)
		}
		documented[m[1]] = fmt.Sprintf("%s, %s", pending, m[2])
	}
	return documented
}

// prometheus is a server of its own.
type prometheus struct{ url string }

// startPrometheus starts one with the configuration and the alerts that are provisioned, but for where the replicas
// are, and how often they are looked at: every second.
func startPrometheus(t *testing.T, replicas []*replica) prometheus {
	t.Helper()
	config := readDocker(t, "prometheus/prometheus.yml")
	var targets []string
	for _, r := range replicas {
		targets = append(targets, strconv.Quote(strings.TrimPrefix(r.url, "http://")))
	}
	for pattern, instead := range map[string]string{
		`scrape_interval: 15s`:                    "scrape_interval: 1s",
		`evaluation_interval: 15s`:                "evaluation_interval: 1s",
		`(?m)^    dns_sd_configs:\n(      .*\n)+`: "    static_configs: [{targets: [" + strings.Join(targets, ", ") + "]}]\n",
	} {
		found := regexp.MustCompile(pattern)
		if len(found.FindAllString(config, -1)) != 1 {
			t.Fatalf("there is not one %s in the configuration", pattern)
		}
		config = found.ReplaceAllLiteralString(config, instead)
	}
	dir := t.TempDir()
	for name, text := range map[string]string{"prometheus.yml": config, "rules.yml": readDocker(t, "prometheus/rules.yml")} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}

	cmd := exec.Command(needed(t, "CARILLON_TEST_PROMETHEUS"), "--config.file="+filepath.Join(dir, "prometheus.yml"),
		"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address=127.0.0.1:0")
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	log, address, exited := &tail{}, make(chan string, 1), make(chan struct{})
	go func() {
		defer close(exited)
		listening := regexp.MustCompile(`msg="Listening on" address=(\S+)`)
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			log.add(lines.Text())
			if m := listening.FindStringSubmatch(lines.Text()); m != nil {
				address <- m[1]
			}
		}
		_ = cmd.Wait() // it is killed
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-exited
		if t.Failed() {
			t.Logf("log of prometheus:\n%s", log)
		}
	})
	var p prometheus
	select {
	case a := <-address:
		p.url = "http://" + a
	case <-exited:
		t.Fatal("prometheus ended at its start")
	case <-time.After(patience):
		t.Fatal("prometheus does not listen")
	}
	await(t, "prometheus is ready", func() bool {
		response, err := http.Get(p.url + "/-/ready")
		if err != nil {
			return false
		}
		_ = response.Body.Close()
		return response.StatusCode == http.StatusOK
	})
	return p
}

// get asks the API, and decodes the answer.
func (p prometheus) get(t *testing.T, path string, data any) {
	t.Helper()
	response, err := http.Get(p.url + path)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var answer struct {
		Status, Error string
		Data          json.RawMessage
	}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	if answer.Status != "success" {
		t.Fatalf("%s: %s", path, answer.Error)
	}
	if err := json.Unmarshal(answer.Data, data); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

// hasData reports whether a query has a result, with the labels of its legend. A comparison drops the series for which
// it is false, so it is replaced by a subtraction. No request fails here with 5xx, so 4xx take their place.
func (p prometheus) hasData(t *testing.T, q query) bool {
	t.Helper()
	type result struct {
		Result []struct {
			Metric map[string]string
			Value  [2]any
		}
	}
	p.get(t, "/api/v1/query?query="+url.QueryEscape(q.expr), &result{}) // it is understood as it is
	expr := strings.ReplaceAll(regexp.MustCompile(` (==|>|<) `).ReplaceAllString(q.expr, " - "), `"5.."`, `"4.."`)
	var got result
	p.get(t, "/api/v1/query?query="+url.QueryEscape(expr), &got)
	for _, sample := range got.Result {
		value, err := strconv.ParseFloat(fmt.Sprint(sample.Value[1]), 64)
		if err != nil {
			t.Fatalf("%s: %v", q.expr, err)
		}
		labelled := !slices.ContainsFunc(q.labels, func(l string) bool { return sample.Metric[l] == "" })
		if labelled && !math.IsNaN(value) {
			return true
		}
	}
	return false
}
