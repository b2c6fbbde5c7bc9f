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
	fmt.Fprintf(w, "Usage: %s COMMAND [OPTIONS]\n\n%s\nCommands:\n", p.Name, wrap(p.Description, ""))
	for _, c := range p.Commands {
		if c.Help != "" {
			fmt.Fprintf(w, "  %s\n%s", c.Name, wrap(c.Help, "      "))
		}
	}
	fmt.Fprintf(w, "\nRun \"%s COMMAND --help\" for a command's options.\n", p.Name)
}

// commandHelp prints a command's description and its options, in the order of their names.
func (p Program) commandHelp(w io.Writer, c Command, flags *flag.FlagSet) {
	arguments := ""
	if c.Arguments != "" {
		arguments = " " + c.Arguments
	}
	fmt.Fprintf(w, "Usage: %s %s%s [OPTIONS]\n\n%s\nOptions:\n", p.Name, c.Name, arguments, wrap(c.Help, ""))
	variables := p.Variables()
	flags.VisitAll(func(f *flag.Flag) {
		name, usage := flag.UnquoteUsage(f)
		line := "  --" + f.Name
		if !isBool(f) {
			line += "=" + name
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
