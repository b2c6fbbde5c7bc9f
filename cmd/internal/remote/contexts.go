package remote

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/carillon-scheduler/carillon/cmd/internal/cli"
)

// address is a service by name. It has no key, only the name of the key's file.
type address struct {
	URL     string `json:"url"`
	KeyFile string `json:"keyFile,omitempty"`
	Tenant  string `json:"tenant,omitempty"`
	CAFile  string `json:"caFile,omitempty"`
}

// contexts is the file of services.
type contexts struct {
	Current  string             `json:"current,omitempty"`
	Contexts map[string]address `json:"contexts"`
}

// contextsFile returns the name of the file.
func contextsFile() (string, error) {
	if name := os.Getenv("CARILLON_CONFIG"); name != "" {
		return name, nil
	}
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", cli.Usagef("there is no place for contexts: %w; name a file by CARILLON_CONFIG", err)
	}
	return filepath.Join(dir, "carillon", "contexts.json"), nil
}

// readContexts reads the file. One that is not there has no contexts.
func readContexts() (contexts, error) {
	all := contexts{Contexts: make(map[string]address)}
	name, err := contextsFile()
	if err != nil {
		return all, nil //nolint:nilerr // a user without such a folder has no contexts
	}
	content, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return all, nil
	}
	if err == nil {
		err = json.Unmarshal(content, &all)
	}
	if err != nil {
		return all, cli.Usagef("the contexts in %s: %w", name, err)
	}
	return all, nil
}

// write replaces the file.
func (c contexts) write() error {
	name, err := contextsFile()
	if err != nil {
		return err
	}
	content, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return err
	}
	draft := name + ".new"
	if err := os.WriteFile(draft, append(content, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(draft, name)
}

func contextCommands() []cli.Command {
	return []cli.Command{
		{
			Name: "context add", Arguments: "NAME URL", New: func() cli.Runner { return &contextAdd{} },
			Help:    "Give a service a name. The first one is used from then on. The file of the key is noted, not the key.",
			Example: "carillon context add prod https://carillon.example.com --key-file ~/.carillon-key",
		},
		{
			Name: "context use", Arguments: "NAME", New: func() cli.Runner { return &contextUse{} }, Complete: contextNames,
			Help: "Use the service of this name from now on.", Example: "carillon context use prod",
		},
		{
			Name: "context list", New: func() cli.Runner { return &contextList{} },
			Help: "List the services that have names.", Example: "carillon context list",
		},
		{
			Name: "context remove", Arguments: "NAME", Complete: contextNames,
			New:  func() cli.Runner { return &contextRemove{} },
			Help: "Forget the name of a service.", Example: "carillon context remove prod",
		},
	}
}

func contextNames(_ context.Context, _ cli.Runner, arguments []string) []string {
	all, err := readContexts()
	if err != nil || len(arguments) != 1 {
		return nil
	}
	return slices.Sorted(maps.Keys(all.Contexts))
}

type contextAdd struct{ keyFile, tenant, caFile string }

// Flags declares the options.
func (c *contextAdd) Flags(f *flag.FlagSet) {
	f.StringVar(&c.keyFile, "key-file", "", "`FILE`: File with the API key.")
	f.StringVar(&c.tenant, "tenant", "", "`NAME`: Whose jobs it is about.")
	f.StringVar(&c.caFile, "ca-file", "", "`FILE`: Certificates (PEM) to trust besides those of this machine.")
}

// Run adds the context.
func (c *contextAdd) Run(_ context.Context, in cli.Input) error {
	if len(in.Arguments) != 2 {
		return cli.Usagef("give a name and a URL: carillon context add prod https://carillon.example.com")
	}
	name, at := in.Arguments[0], address{URL: in.Arguments[1], Tenant: c.tenant}
	for _, file := range []struct {
		given string
		to    *string
	}{{c.keyFile, &at.KeyFile}, {c.caFile, &at.CAFile}} {
		if file.given == "" {
			continue
		}
		if _, err := os.Stat(file.given); err != nil {
			return cli.Usage(err)
		}
		var err error
		if *file.to, err = filepath.Abs(file.given); err != nil {
			return err
		}
	}
	if _, err := (&connection{url: at.URL, keyFile: at.KeyFile, caFile: at.CAFile}).open(in.Stderr); err != nil {
		return err
	}
	all, err := readContexts()
	if err != nil {
		return err
	}
	if all.Contexts[name] = at; all.Current == "" {
		all.Current = name
	}
	if err := all.write(); err != nil {
		return err
	}
	fmt.Fprintf(in.Stderr, "context %s is %s; the current one is %s\n", name, at.URL, all.Current)
	return nil
}

// named returns the contexts, and the name in the argument, which must be there.
func named(in cli.Input) (contexts, string, error) {
	all, err := readContexts()
	if err != nil {
		return all, "", err
	}
	if len(in.Arguments) != 1 {
		return all, "", cli.Usagef("name one context; \"carillon context list\" shows all")
	}
	name := in.Arguments[0]
	if _, ok := all.Contexts[name]; !ok {
		return all, "", cli.Usagef("there is no context %q; \"carillon context list\" shows all", name)
	}
	return all, name, nil
}

type contextUse struct{}

// Flags declares no option.
func (*contextUse) Flags(*flag.FlagSet) {}

// Run changes the current context.
func (*contextUse) Run(_ context.Context, in cli.Input) error {
	all, name, err := named(in)
	if err != nil {
		return err
	}
	all.Current = name
	return all.write()
}

type contextRemove struct{}

// Flags declares no option.
func (*contextRemove) Flags(*flag.FlagSet) {}

// Run removes a context.
func (*contextRemove) Run(_ context.Context, in cli.Input) error {
	all, name, err := named(in)
	if err != nil {
		return err
	}
	delete(all.Contexts, name)
	if all.Current == name {
		all.Current = ""
	}
	return all.write()
}

type contextList struct{ output output }

// Flags declares the options.
func (c *contextList) Flags(f *flag.FlagSet) { c.output.flags(f) }

// Run lists the contexts.
func (c *contextList) Run(_ context.Context, in cli.Input) error {
	all, err := readContexts()
	if err != nil {
		return err
	}
	p := c.output.printer(in)
	for _, name := range slices.Sorted(maps.Keys(all.Contexts)) {
		at := all.Contexts[name]
		current := ""
		if name == all.Current {
			current = "*"
		}
		p.item(shown{document: document{
			"current": current, "name": name, "url": at.URL, "tenant": at.Tenant, "keyFile": at.KeyFile,
		}})
	}
	return p.end([]column{
		{"CURRENT", "current"}, {"NAME", "name"}, {"URL", "url"}, {"TENANT", "tenant"}, {"KEY FILE", "keyFile"},
	})
}
