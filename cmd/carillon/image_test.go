package main

import (
	"bytes"
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The image's commands are the program's: what it runs by default, what Docker asks it by, and options behind its name.
func TestImageCommands(t *testing.T) {
	file, err := os.ReadFile("../../docker/Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	command := func(instruction string) (args []string) {
		line := regexp.MustCompile(`(?m)^` + instruction + ` .*?(\[.*\])$`).FindSubmatch(file)
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
