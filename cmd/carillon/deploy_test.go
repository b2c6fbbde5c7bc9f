package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/carillon-scheduler/carillon/cmd/internal/listen/listentest"
)

// TestManifests: the pods of the Helm chart, for each store, and of the kustomizations start the program by options that
// there are, with values that it takes, and find their secrets in files that it reads.
func TestManifests(t *testing.T) {
	files, err := filepath.Glob("../../deploy/render/testdata/*.yaml")
	if err != nil || len(files) != 4 {
		t.Fatal(files, err)
	}
	files = append(files, "../../deploy/kustomize/base/carillon.yaml", "../../deploy/kustomize/sqlite/carillon.yaml")
	for _, path := range files {
		t.Run(strings.TrimPrefix(filepath.ToSlash(path), "../../deploy/"), func(t *testing.T) {
			container := containerOf(t, path)
			secrets := t.TempDir()
			file := "sqlite:" + filepath.Join(t.TempDir(), "carillon.db") // for every store
			local := func(s string) string {
				s = strings.ReplaceAll(s, "/run/secrets/carillon", secrets)
				s = strings.ReplaceAll(s, "--listen=:8080", "--listen=203.0.113.1:1") // which no machine has
				return strings.ReplaceAll(s, "--metrics-listen=:9090", "--metrics-listen=127.0.0.1:0")
			}
			var store bool
			for _, variable := range container.Env {
				if !strings.HasPrefix(variable.Name, "CARILLON_") {
					continue
				}
				t.Setenv(variable.Name, local(variable.Value))
				content := "amqp://guest:guest@127.0.0.1:1/"
				switch variable.Name {
				case "CARILLON_STORE":
					store = variable.Value == "sqlite:/data/carillon.db"
					t.Setenv(variable.Name, file)
				case "CARILLON_STORE_FILE":
					store = true
					content = file
				}
				if strings.HasSuffix(variable.Name, "_FILE") {
					write(t, local(variable.Value), content)
				}
			}
			if !store {
				t.Error("the store is not set")
			}
			var args []string
			for _, arg := range container.Args {
				args = append(args, local(arg))
				name, value, _ := strings.Cut(local(arg), "=")
				switch name {
				case "--encryption-key-file":
					for name := range strings.SplitSeq(value, ",") {
						if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
							t.Fatal(err)
						}
						if code := run([]string{"secrets", "new-key", name}, io.Discard, io.Discard); code != 0 {
							t.Fatal(code)
						}
					}
				case "--tls-cert":
					folder := t.TempDir()
					listentest.NewAuthority(t).Issue(t, folder, listentest.Certificate{})
					for _, name := range []string{"tls.crt", "tls.key"} {
						content, err := os.ReadFile(filepath.Join(folder, name))
						if err != nil {
							t.Fatal(err)
						}
						option := map[string]string{"tls.crt": "tls-cert", "tls.key": "tls-key"}[name]
						write(t, filepath.Join(secrets, option, "0-"+name), string(content))
					}
				}
			}
			var stdout, stderr bytes.Buffer
			run(args, &stdout, &stderr)
			if said := stderr.String(); strings.Contains(said, "belongs to no option") || !strings.Contains(said, "--listen: listen") {
				t.Errorf("%q says %s", args, said)
			}
		})
	}
}

type container struct {
	Args []string
	Env  []struct{ Name, Value string }
}

// containerOf reads the container of a workload.
func containerOf(t *testing.T, path string) container {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for decoder := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var object struct {
			Kind string
			Spec struct {
				Template struct {
					Spec struct{ Containers []container }
				}
			}
		}
		switch err := decoder.Decode(&object); {
		case errors.Is(err, io.EOF):
			t.Fatalf("%s has no workload", path)
		case err != nil:
			t.Fatalf("%s: %v", path, err)
		case object.Kind == "Deployment" || object.Kind == "StatefulSet":
			return object.Spec.Template.Spec.Containers[0]
		}
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}
