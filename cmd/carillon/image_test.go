package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

// The image's commands are the program's: its default command, its health check, and options behind its name.
func TestImageCommands(t *testing.T) {
	file, err := os.ReadFile("../../docker/Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	stages := bytes.Split(file, []byte("\nFROM "))
	image := stages[len(stages)-1] // the image is the last stage
	command := func(instruction string) (args []string) {
		line := regexp.MustCompile(`(?m)^` + instruction + ` .*?(\[.*\])$`).FindSubmatch(image)
		if line == nil {
			t.Fatalf("it has no %s in the form of a list", instruction)
		}
		if err := json.Unmarshal(line[1], &args); err != nil {
			t.Fatal(err)
		}
		return args
	}
	program := command("ENTRYPOINT")
	for name, args := range map[string][]string{
		"CMD":         slices.Concat(program, command("CMD")),
		"HEALTHCHECK": command("HEALTHCHECK"),
		"options":     append(slices.Clone(program), "--store=sqlite:/data/other.db"),
		"a command":   append(slices.Clone(program), "export"),
	} {
		if args[0] != program[0] || len(program) != 1 {
			t.Errorf("%s runs %q, the program is %q", name, args, program)
		}
		var stdout, stderr bytes.Buffer
		if code := run(append(args[1:], "--help"), &stdout, &stderr); code != 0 {
			t.Errorf("%s, %q: exit code %d: %s", name, args, code, &stderr)
		}
		if name == "options" && !strings.Contains(stdout.String(), "Usage: carillon serve") {
			t.Errorf("options alone are of\n%s", &stdout)
		}
	}
}

// TestCompose: docker/compose.yaml runs two replicas on MongoDB and RabbitMQ, a second file replaces the store, and all
// of them set the service up by options that there are.
func TestCompose(t *testing.T) {
	type service struct {
		Environment map[string]string
		Deploy      struct{ Replicas int }
		DependsOn   any      `yaml:"depends_on"`
		Healthcheck struct { // only its test is checked
			Test []string
		}
	}
	read := func(name string) map[string]service {
		t.Helper()
		file, err := os.ReadFile("../../docker/" + name)
		if err != nil {
			t.Fatal(err)
		}
		var compose struct{ Services map[string]service }
		if err := yaml.Unmarshal(file, &compose); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return compose.Services
	}
	base := read("compose.yaml")
	if n := base["carillon"].Deploy.Replicas; n != 2 {
		t.Errorf("there are %d replicas, want 2", n)
	}
	for _, name := range []string{"mongodb", "rabbitmq"} {
		if len(base[name].Healthcheck.Test) == 0 {
			t.Errorf("%s has no health check", name)
		}
	}
	for name, kind := range map[string]string{
		"compose.yaml": "mongodb", "compose.postgres.yaml": "postgres", "compose.redis.yaml": "redis",
	} {
		services := read(name)
		carillon := services["carillon"]
		url := carillon.Environment["CARILLON_STORE"]
		if !regexp.MustCompile(`^` + kind + `://(.*@)?` + kind + `:`).MatchString(url) {
			t.Errorf("%s: the store is %q, want the service %s", name, url, kind)
		}
		awaited, _ := carillon.DependsOn.(map[string]any)[kind].(map[string]any)
		if awaited["condition"] != "service_healthy" || len(services[kind].Healthcheck.Test) == 0 {
			t.Errorf("%s: the replicas do not wait until %s is healthy: %v", name, kind, carillon.DependsOn)
		}
		t.Setenv("CARILLON_LISTEN", "203.0.113.1:1") // which no machine has
		t.Setenv("CARILLON_AUTH", "keys")            // which is the image's
		for _, environment := range []map[string]string{base["carillon"].Environment, carillon.Environment} {
			for variable, value := range environment {
				t.Setenv(variable, value)
			}
		}
		t.Setenv("CARILLON_STORE", "memory:")
		var stdout, stderr bytes.Buffer
		run([]string{"serve"}, &stdout, &stderr)
		if strings.Contains(stderr.String(), "belongs to no option") || !strings.Contains(stderr.String(), "--listen: listen") {
			t.Errorf("%s: the service says %s", name, &stderr)
		}
	}
}

// TestImageAsksForKeys: the image listens beyond its container, so it requires keys by default.
func TestImageAsksForKeys(t *testing.T) {
	file, err := os.ReadFile("../../docker/Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	for _, setting := range []string{"CARILLON_LISTEN=:8080", "CARILLON_AUTH=keys"} {
		if !bytes.Contains(file, []byte(setting)) {
			t.Errorf("the image does not set %s", setting)
		}
	}
}

// TestComposeIsForThisMachine: the demo requires no keys, so none of its ports is published beyond this machine.
func TestComposeIsForThisMachine(t *testing.T) {
	files, err := filepath.Glob("../../docker/compose*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	published := 0
	for _, path := range files {
		file, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var compose struct {
			Services map[string]struct{ Ports []string }
		}
		if err := yaml.Unmarshal(file, &compose); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		for name, service := range compose.Services {
			for _, port := range service.Ports {
				if published++; !strings.HasPrefix(port, "127.0.0.1:") {
					t.Errorf("%s: %s publishes %s", path, name, port)
				}
			}
		}
	}
	if published == 0 {
		t.Error("nothing is published at all")
	}
}

// TestImagesArePinned: each image that is not ours is named by its digest, beside a tag for readers.
func TestImagesArePinned(t *testing.T) {
	files, err := filepath.Glob("../../docker/*")
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile(`(?m)^(?:FROM|# syntax=|\s+image:)\s*(\S+)`)
	pinned := regexp.MustCompile(`^[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}$`)
	stages := map[string]bool{}
	n := 0
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			continue // a folder
		}
		for _, m := range regexp.MustCompile(`(?m)^FROM .* AS (\S+)$`).FindAllSubmatch(text, -1) {
			stages[string(m[1])] = true
		}
		for _, m := range named.FindAllSubmatch(text, -1) {
			if image := string(m[1]); !stages[image] {
				n++
				if !pinned.MatchString(image) {
					t.Errorf("%s: %s is not pinned", name, image)
				}
			}
		}
	}
	if n < 10 {
		t.Errorf("%d images were found: does this test still find them?", n)
	}
}
