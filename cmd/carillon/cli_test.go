package main

import (
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/carillon-scheduler/carillon/access"
	"github.com/carillon-scheduler/carillon/cmd/internal/cli"
	"github.com/carillon-scheduler/carillon/cmd/internal/remote"
	"github.com/carillon-scheduler/carillon/handlers"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/memory"
)

// elsewhere are commands whose examples are not run here: they run until they are interrupted, as the end-to-end tests do,
// or need a cluster, as the one that sim/mongosim has.
var elsewhere = []string{"serve", "demo", "shard"}

// TestExamples runs the example of the help of each command that works on a store, in turn. Those of commands that ask
// a service are run beside them.
func TestExamples(t *testing.T) {
	t.Chdir(t.TempDir())
	onStore(t, "sqlite:carillon.db", func(store.Store) {})
	onStore(t, "sqlite:other.db", func(store.Store) {})
	st := memory.New()
	server := httptest.NewServer(handlers.New(handlers.Config{Store: st, Inspector: st, Records: st, MaxBody: 1}))
	defer server.Close()
	others := make(map[string]bool)
	for _, c := range remote.Commands(program) {
		others[c.Name] = true
	}
	id := ""
	for _, c := range program().Commands {
		if c.Help == "" || others[c.Name] {
			continue
		}
		if c.Example == "" {
			t.Errorf("the help of %s has no example", c.Name)
			continue
		}
		if strings.Contains(strings.Join(elsewhere, " "), c.Name) {
			continue
		}
		switch c.Name {
		case "import": // into a store of its own
			onStore(t, "sqlite:other.db", func(store.Store) {})
		case "secrets reencrypt":
			carillon(t, 0, "secrets", "new-key", "new.key")
		}
		line := strings.NewReplacer("4iC0dQxYb7Zr", id, "mongodb://db.example.com/carillon", "sqlite:carillon.db",
			"127.0.0.1:8080", server.Listener.Addr().String()).Replace(c.Example)
		var args []string
		for _, word := range regexp.MustCompile(`'[^']*'|[^ ]+`).FindAllString(line, -1)[1:] {
			args = append(args, strings.Trim(word, "'"))
		}
		out, _ := carillon(t, 0, args...)
		if token, ok := access.ParseToken(strings.TrimSpace(out)); ok {
			id = token
		}
	}
}

// TestReference: the list of commands in docs/cli.md is that of the program.
func TestReference(t *testing.T) {
	const begin, end = "<!-- commands: made by CARILLON_TEST_UPDATE=1 go test ./cmd/carillon -run TestReference -->\n", "<!-- end -->"
	name := filepath.Join("..", "..", "docs", "cli.md")
	page, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(page), begin)
	present, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s lacks the marks of the list", name)
	}
	want := reference(program())
	if present == want {
		return
	}
	if os.Getenv("CARILLON_TEST_UPDATE") == "" {
		t.Fatalf("the commands in %s are not those of the program: run CARILLON_TEST_UPDATE=1 go test ./cmd/carillon -run TestReference", name)
	}
	if err := os.WriteFile(name, []byte(before+begin+want+end+after), 0o600); err != nil {
		t.Fatal(err)
	}
}

// reference returns the commands as Markdown.
func reference(p cli.Program) string {
	var b strings.Builder
	for _, c := range p.Commands {
		if c.Section != "" {
			fmt.Fprintf(&b, "\n### %s\n\n| command | what it does | example |\n|---|---|---|\n", c.Section)
		}
		if c.Help != "" {
			cell := strings.NewReplacer("|", `\|`, "\n", " ").Replace
			fmt.Fprintf(&b, "| `%s` | %s | `%s` |\n", cell(strings.TrimSpace(c.Name+" "+c.Arguments)), cell(c.Help), cell(c.Example))
		}
	}
	return b.String() + "\n"
}
