package main_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// docker is the folder of the provisioned files.
var docker = filepath.Join("..", "..", "docker")

// dashboard is the part of Grafana's model that the tests read.
type dashboard struct {
	UID, Title string
	Templating struct {
		List []struct {
			Name, Type string
			Query      any // a type of data sources' name, or {"query": …}
		}
	}
	Panels []panel
}

type panel struct {
	ID                       int
	Type, Title, Description string
	Datasource               struct{ Type, UID string }
	GridPos                  struct{ H, W, X, Y int }
	Targets                  []struct{ RefID, Expr, LegendFormat string }
	FieldConfig              struct{ Defaults struct{ Unit string } }
}

func readDashboard(t *testing.T) (d dashboard) {
	t.Helper()
	if err := json.Unmarshal([]byte(readDocker(t, "grafana/dashboards/carillon.json")), &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// readDocker reads a file of that folder.
func readDocker(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(docker, filepath.FromSlash(name)))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestDashboardPanels: a panel has a title, a description and a unit, and covers no other.
func TestDashboardPanels(t *testing.T) {
	d := readDashboard(t)
	if d.UID != "carillon" || d.Title == "" {
		t.Errorf("the dashboard is %q with the uid %q", d.Title, d.UID)
	}
	variables := map[string]bool{"__rate_interval": true} // Grafana's own
	for _, v := range d.Templating.List {
		variables[v.Name] = true
	}
	ids, covered := map[int]bool{}, map[[2]int]string{}
	for _, p := range d.Panels {
		if ids[p.ID] {
			t.Errorf("%s has the id %d of another", p.Title, p.ID)
		}
		ids[p.ID] = true
		g := p.GridPos
		if g.X < 0 || g.X+g.W > 24 || g.W*g.H == 0 {
			t.Errorf("%s lies outside of the grid: %+v", p.Title, g)
		}
		for x := g.X; x < g.X+g.W; x++ {
			for y := g.Y; y < g.Y+g.H; y++ {
				if other := covered[[2]int{x, y}]; other != "" {
					t.Fatalf("%s covers %s", p.Title, other)
				}
				covered[[2]int{x, y}] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		if p.Title == "" || p.Description == "" || p.FieldConfig.Defaults.Unit == "" || len(p.Targets) == 0 {
			t.Errorf("panel %d, %q, lacks its title, description, unit or queries", p.ID, p.Title)
		}
		if p.Datasource.Type != "prometheus" || p.Datasource.UID != "${datasource}" {
			t.Errorf("%s asks %v", p.Title, p.Datasource)
		}
		refs := map[string]bool{}
		for _, q := range p.Targets {
			if refs[q.RefID] || q.LegendFormat == "" {
				t.Errorf("%s has two queries %q, or one without a legend", p.Title, q.RefID)
			}
			refs[q.RefID] = true
			for _, v := range regexp.MustCompile(`\$\{?(\w+)`).FindAllStringSubmatch(q.Expr, -1) {
				if !variables[v[1]] {
					t.Errorf("%s asks for the variable %s, which there is not", p.Title, v[1])
				}
			}
		}
	}
}

// TestMonitoringFiles: the files that Docker Compose mounts exist, and those that Grafana and Prometheus are configured
// to read are mounted.
func TestMonitoringFiles(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(docker, "compose*.yaml"))
	if err != nil || len(files) < 4 {
		t.Fatalf("%d files for compose, %v", len(files), err)
	}
	for _, file := range files {
		text := readDocker(t, filepath.Base(file))
		for _, mount := range regexp.MustCompile(`(?m)^\s+- \./([^:\s]+):/`).FindAllStringSubmatch(text, -1) {
			if _, err := os.Stat(filepath.Join(docker, mount[1])); err != nil {
				t.Errorf("%s mounts what is not there: %v", filepath.Base(file), err)
			}
		}
	}
	compose := readDocker(t, "compose.monitoring.yaml")
	provider := readDocker(t, "grafana/provisioning/dashboards/carillon.yaml")
	for _, c := range []struct{ in, text string }{
		{compose, "- ./prometheus:/etc/prometheus:ro"},
		{compose, "--config.file=/etc/prometheus/prometheus.yml"},
		{compose, "- ./grafana/provisioning:/etc/grafana/provisioning:ro"},
		{compose, "- ./grafana/dashboards:/etc/grafana/dashboards:ro"},
		{compose, "HOME_DASHBOARD_PATH: /etc/grafana/dashboards/carillon.json"},
		{provider, "path: /etc/grafana/dashboards"},
		{readDocker(t, "grafana/provisioning/datasources/prometheus.yaml"), "url: http://prometheus:9090"},
	} {
		if !strings.Contains(c.in, c.text) {
			t.Errorf("there is no %q", c.text)
		}
	}
	for _, published := range regexp.MustCompile(`(?m)^    ports:\n((?: +- .*\n)+)`).FindAllStringSubmatch(compose, -1) {
		for _, line := range strings.Split(strings.TrimSpace(published[1]), "\n") {
			if !strings.Contains(line, `"127.0.0.1:`) {
				t.Errorf("%s is published to more than this machine", strings.TrimSpace(line))
			}
		}
	}
	for _, image := range regexp.MustCompile(`(?m)^    image: (.*)$`).FindAllStringSubmatch(compose, -1) {
		if !regexp.MustCompile(`:v?\d+\.\d+\.\d+(@sha256:[0-9a-f]{64})?$`).MatchString(image[1]) {
			t.Errorf("%s has no exact version", image[1])
		}
	}
}
