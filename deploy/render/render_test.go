package render_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	"sigs.k8s.io/yaml"
)

const chartFolder = "../helm/carillon"

// render renders the chart, as `helm template` does: the manifests of each template, in the order of their names.
func render(values map[string]any) (string, error) {
	chart, err := loader.Load(chartFolder)
	if err != nil {
		return "", err
	}
	if problem := chart.Validate(); problem != nil {
		return "", problem
	}
	all, err := util.ToRenderValues(chart, values, common.ReleaseOptions{
		Name: "carillon", Namespace: "carillon", Revision: 1, IsInstall: true,
	}, common.DefaultCapabilities)
	if err != nil {
		return "", err
	}
	files, err := engine.Engine{Strict: false}.Render(chart, all)
	if err != nil {
		return "", err
	}
	var manifests []string
	for name, text := range files {
		if text = strings.TrimSpace(text); path.Ext(name) == ".yaml" && text != "" {
			manifests = append(manifests, text+"\n")
		}
	}
	slices.Sort(manifests)
	return strings.Join(manifests, "---\n"), nil
}

// values reads values of YAML.
func values(t *testing.T, text string) map[string]any {
	t.Helper()
	v := map[string]any{}
	if err := yaml.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// TestChart: the chart is valid for each store, and testdata shows its manifests.
func TestChart(t *testing.T) {
	for _, store := range []string{"sqlite", "postgres", "mongodb", "redis"} {
		t.Run(store, func(t *testing.T) {
			text, err := os.ReadFile(filepath.Join(chartFolder, "ci", store+"-values.yaml"))
			if err != nil {
				t.Fatal(err)
			}
			manifests, err := render(values(t, string(text)))
			if err != nil {
				t.Fatal(err)
			}
			objects := decode(t, manifests)
			consistent(t, objects)
			hardened(t, objects)
			golden(t, filepath.Join("testdata", store+".yaml"), manifests)
		})
	}
}

// TestKustomizations: they contain the chart's manifests, without its own labels; each can be built, and is valid.
func TestKustomizations(t *testing.T) {
	const folder = "../kustomize"
	server := "store: {kind: postgres, secret: {name: carillon-store}}\n"
	for _, made := range []struct {
		folder, values string
		kinds          []string // empty for all
	}{
		{"base", server, nil},
		{"sqlite", "store: {kind: sqlite}", nil},
		{"components/autoscaling", server + "autoscaling: {enabled: true}", []string{"HorizontalPodAutoscaler"}},
		{"components/network-policy", server + "networkPolicy: {enabled: true}", []string{"NetworkPolicy"}},
		{"components/service-monitor", server + "serviceMonitor: {enabled: true}", []string{"ServiceMonitor"}},
	} {
		manifests, err := render(values(t, made.values))
		if err != nil {
			t.Fatal(err)
		}
		golden(t, filepath.Join(folder, made.folder, "carillon.yaml"), plain(manifests, made.kinds))
	}
	for built, want := range map[string][]string{
		"base":   {"Deployment", "PodDisruptionBudget", "Service", "Service", "ServiceAccount"},
		"sqlite": {"Service", "Service", "ServiceAccount", "StatefulSet"},
		"example": {
			"Deployment", "HorizontalPodAutoscaler", "Namespace", "NetworkPolicy", "PodDisruptionBudget", "Secret", "Service",
			"Service", "ServiceAccount", "ServiceMonitor",
		},
	} {
		t.Run(built, func(t *testing.T) {
			manifests := kustomize(t, filepath.Join(folder, built))
			objects := decode(t, manifests)
			consistent(t, objects)
			hardened(t, objects)
			if kinds := kinds(objects); !slices.Equal(kinds, want) {
				t.Errorf("it makes %q, want %q", kinds, want)
			}
			if built == "example" && strings.Contains(manifests, "replicas: 2") {
				t.Error("the number of replicas is fixed, and would undo that of the autoscaler")
			}
		})
	}
}

// plain returns the manifests of some kinds, or of all, without Helm's labels.
func plain(manifests string, kinds []string) string {
	var kept []string
	for text := range strings.SplitSeq(manifests, "\n---\n") {
		var lines []string
		wanted := len(kinds) == 0
		for line := range strings.Lines(text) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
			switch name {
			case "helm.sh/chart", "app.kubernetes.io/managed-by", "app.kubernetes.io/version":
				continue
			case "kind":
				wanted = wanted || slices.Contains(kinds, value)
			}
			lines = append(lines, strings.TrimRight(line, "\n"))
		}
		if wanted {
			kept = append(kept, strings.Join(lines, "\n"))
		}
	}
	return "# Made from the chart, by CARILLON_TEST_UPDATE=1 go test . in deploy/render.\n" + strings.Join(kept, "\n---\n") + "\n"
}

// golden compares a file with its expected content, or writes it.
func golden(t *testing.T, path, want string) {
	t.Helper()
	if os.Getenv("CARILLON_TEST_UPDATE") != "" {
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(want), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	if !bytes.Equal(got, []byte(want)) {
		t.Errorf("%s is not what the chart makes: write it by CARILLON_TEST_UPDATE=1 go test . in deploy/render. Wanted:\n%s", path, want)
	}
}

// TestRefused: invalid values are refused with a message that names them.
func TestRefused(t *testing.T) {
	for text, want := range map[string]string{
		"replicas: 2": "replicas",
		"{store: {kind: sqlite}, autoscaling: {enabled: true}}": "autoscaling",
		"store: {kind: postgres}":                               "store/secret",
		"store: {kind: mysql}":                                  "store/kind",
		"store: {url: postgres://user:password@host}":           "url",
		"options: {store: 'postgres://user:password@host'}":     "propertyName 'store'",
		"options: {Concurrency: 3}":                             "propertyName 'Concurrency'",
		"secrets: {rabbitmq-url: amqp://user:password@host}":    "secrets/rabbitmq-url",
		"replica: 3":                        "replica",
		"image: {digest: latest}":           "image/digest",
		"networkPolicy: {storePort: 70000}": "storePort",
		"{store: {kind: redis, secret: {name: a}}, terminationGracePeriodSeconds: 100s}": "terminationGracePeriodSeconds",
	} {
		if manifests, err := render(values(t, text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error that names %s\n%s", text, err, want, manifests)
		}
	}
}

// TestRefusedByTemplates: the templates themselves refuse the worst values, in case the schema is skipped.
func TestRefusedByTemplates(t *testing.T) {
	for text, want := range map[string]string{
		"replicas: 2":                  "SQLite allows one replica",
		"autoscaling: {enabled: true}": "SQLite allows one replica",
		"store: {kind: redis}":         "store.secret.name",
	} {
		chart, err := loader.Load(chartFolder)
		if err != nil {
			t.Fatal(err)
		}
		all, err := util.ToRenderValuesWithSchemaValidation(chart, values(t, text), common.ReleaseOptions{Name: "carillon"},
			common.DefaultCapabilities, true)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := (engine.Engine{}).Render(chart, all); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error that says %s", text, err, want)
		}
	}
}

// TestLongNames: names stay within the 63 characters that Kubernetes allows.
func TestLongNames(t *testing.T) {
	manifests, err := render(values(t, fmt.Sprintf("fullnameOverride: %s", strings.Repeat("long-", 20))))
	if err != nil {
		t.Fatal(err)
	}
	consistent(t, decode(t, manifests))
}
