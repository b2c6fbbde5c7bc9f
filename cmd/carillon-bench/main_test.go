package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/carillon-scheduler/carillon/cmd/internal/cli"
)

func TestUsageErrors(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		want string // in the message
	}{
		{"no mode", nil, "drain"},
		{"unknown mode", []string{"sprint"}, "sprint"},
		{"unknown option", []string{"drain", "--bogus"}, "--bogus"},
		{"fires nothing", []string{"burst", "--count=0"}, "--count"},
		{"nobody looks", []string{"browse", "--viewers=0"}, "--viewers"},
		{"nobody connected", []string{"mixed", "--connections=0"}, "--connections"},
		{"one tenant", []string{"fairness", "--tenants=1"}, "--tenants"},
		{"a smallest backlog that is the larger one", []string{"fairness", "--spread=0.5"}, "--spread"},
		{"a part of fairness that there is not", []string{"fairness", "--only=cake"}, "--only"},
		{"no callback type", []string{"drain", "--callback=pigeon"}, "--callback"},
		{"a broker that is missing", []string{"drain", "--callback=rabbitmq"}, "--rabbitmq-url"},
		{"a queue without a broker", []string{"intake"}, "--rabbitmq-url"},
		{"no kind of store", []string{"drain", "--store=oracle://user:hunter2@host"}, "--store"},
		{"a small payload", []string{"drain", "--payload=1"}, "--payload"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			if code := run(c.args, &stdout, &stderr); code != cli.ExitUsage {
				t.Errorf("exit code %d, want %d", code, cli.ExitUsage)
			}
			if !strings.Contains(stderr.String(), c.want) || strings.Contains(stderr.String(), "hunter2") {
				t.Errorf("the message does not name %s, or has the password: %s", c.want, &stderr)
			}
		})
	}
}

func TestHelp(t *testing.T) {
	for _, args := range [][]string{{"--help"}, {"drain", "--help"}, {"feed", "--help"}, {"--version"}} {
		var stdout, stderr bytes.Buffer
		if code := run(args, &stdout, &stderr); code != 0 || stdout.Len() == 0 {
			t.Errorf("%q: exit code %d, %s%s", args, code, &stdout, &stderr)
		}
	}
}
