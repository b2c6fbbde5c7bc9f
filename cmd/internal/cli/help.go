package cli

import (
	"flag"
	"fmt"
	"io"
	"strings"
)

// width is the number of columns of help.
const width = 110

// help prints the program's description and its commands.
func (p Program) help(w io.Writer) {
	fmt.Fprintf(w, "Usage: %s COMMAND [OPTIONS]\n\n%s", p.Name, wrap(p.Description, ""))
	for i, c := range p.Commands {
		switch {
		case c.Section != "":
			fmt.Fprintf(w, "\n%s:\n", c.Section)
		case i == 0:
			fmt.Fprintf(w, "\nCommands:\n")
		}
		c.list(w)
	}
	fmt.Fprintf(w, "\nRun \"%s COMMAND --help\" for a command's options.\n", p.Name)
}

// groupHelp prints the commands that begin with a word.
func (p Program) groupHelp(w io.Writer, word string) {
	fmt.Fprintf(w, "Usage: %s %s COMMAND [OPTIONS]\n\nCommands:\n", p.Name, word)
	for _, c := range p.Commands {
		if strings.HasPrefix(c.Name, word+" ") {
			c.list(w)
		}
	}
	fmt.Fprintf(w, "\nRun \"%s %s COMMAND --help\" for a command's options.\n", p.Name, word)
}

// list prints a command's line in a list, if it is listed.
func (c Command) list(w io.Writer) {
	if c.Help != "" {
		fmt.Fprintf(w, "  %s\n%s", strings.TrimRight(c.Name+" "+c.Arguments, " "), wrap(c.Help, "      "))
	}
}

// commandHelp prints a command's description and its options, in the order of their names.
func (p Program) commandHelp(w io.Writer, c Command, flags *flag.FlagSet) {
	arguments := ""
	if c.Arguments != "" {
		arguments = " " + c.Arguments
	}
	fmt.Fprintf(w, "Usage: %s %s%s [OPTIONS]\n\n%s", p.Name, c.Name, arguments, wrap(c.Help, ""))
	if c.Example != "" {
		fmt.Fprintf(w, "\nExample:\n  %s\n", strings.ReplaceAll(c.Example, "\n", "\n  "))
	}
	fmt.Fprintf(w, "\nOptions:\n")
	variables := p.variables(flags)
	flags.VisitAll(func(f *flag.Flag) {
		name, usage := flag.UnquoteUsage(f)
		line := "  " + Dashed(f.Name)
		if !isBool(f) {
			line += map[bool]string{true: " ", false: "="}[len(f.Name) == 1] + name
			usage = strings.TrimPrefix(usage, name+": ")
		}
		if f.DefValue != "" && f.DefValue != "false" && f.DefValue != "0" {
			usage += " (" + f.DefValue + ")"
		}
		if variable := variables[f.Name]; variable != "" {
			line += "  $" + variable
		}
		fmt.Fprintf(w, "%s\n%s", line, wrap(usage, "      "))
	})
	fmt.Fprintf(w, "  --help\n      Print this.\n  --version\n      Print the version.\n")
}

// wrap breaks text into lines of bounded width, each with an indent and a line end. It keeps existing line breaks.
func wrap(text, indent string) string {
	var b strings.Builder
	for paragraph := range strings.Lines(text) {
		line := indent
		for word := range strings.FieldsSeq(paragraph) {
			if len(line) > len(indent) && len(line)+1+len(word) > width {
				b.WriteString(line + "\n")
				line = indent
			}
			if len(line) > len(indent) {
				line += " "
			}
			line += word
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	return b.String()
}
