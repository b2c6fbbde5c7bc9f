package released

import (
	"flag"

	"github.com/carillon-scheduler/carillon/cmd/internal/cli"
)

// AddCommands adds a program's commands, with their options, defaults and variables. Hidden commands are left out.
func (s Surface) AddCommands(p cli.Program) {
	variables := p.Variables()
	for _, c := range p.Commands {
		if c.Help == "" {
			continue
		}
		command := "command " + c.Name
		s[command] = Item{In: true, Exact: map[string]string{"arguments": c.Arguments}}
		flags := flag.NewFlagSet(c.Name, flag.ContinueOnError)
		c.New().Flags(flags)
		flags.VisitAll(func(f *flag.Flag) {
			kind := "value"
			if b, ok := f.Value.(interface{ IsBoolFlag() bool }); ok && b.IsBoolFlag() {
				kind = "switch"
			}
			item := Item{In: true, Parent: command, Type: []string{kind}, Exact: map[string]string{"default": f.DefValue}}
			if v := variables[f.Name]; v != "" {
				item.Exact["variable"] = v
			}
			s["option "+c.Name+" "+cli.Dashed(f.Name)] = item
		})
	}
}

// AddVariable adds an environment variable that belongs to no option.
func (s Surface) AddVariable(name string) { s["variable "+name] = Item{In: true} }

// AddMetric adds a metric, with its type and the names of its labels.
func (s Surface) AddMetric(name, kind, labels string) {
	s["metric "+name] = Item{Out: true, Type: []string{kind}, Exact: map[string]string{"labels": labels}}
}
