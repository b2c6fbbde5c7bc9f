package cli

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Complete returns the completions of the last word of a command line: commands, options, values of options with a
// choice, and arguments that the command itself knows.
func (p Program) Complete(ctx context.Context, words []string) []string {
	if len(words) == 0 {
		words = []string{""}
	}
	typed := words[len(words)-1]
	name, rest := p.command(words[:len(words)-1])
	i := p.index(name)
	if i < 0 {
		return begin(p.next(words[:len(words)-1]), typed)
	}
	command := p.Commands[i]
	runner := command.New()
	flags := flag.NewFlagSet(command.Name, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	runner.Flags(flags)
	if len(rest) > 0 {
		if before := rest[len(rest)-1]; strings.HasPrefix(before, "-") && !strings.Contains(before, "=") {
			name, _, valued := option(before, flags)
			if f := flags.Lookup(name); f != nil && !isBool(f) && !valued {
				return begin(choices(f), typed)
			}
		}
	}
	if strings.HasPrefix(typed, "-") {
		name, value, valued := option(typed, flags)
		if f := flags.Lookup(name); f != nil && valued {
			var all []string
			for _, c := range begin(choices(f), value) {
				all = append(all, Dashed(name)+"="+c)
			}
			return all
		}
		return begin(options(flags), typed)
	}
	if command.Complete == nil {
		return nil
	}
	arguments, _, err := parse(flags, rest)
	if err != nil {
		return nil
	}
	return begin(command.Complete(ctx, runner, append(arguments, typed)), typed)
}

// next returns the words of commands that may follow the words.
func (p Program) next(words []string) (next []string) {
	for _, name := range p.names() {
		parts := strings.Fields(name)
		if len(parts) > len(words) && slices.Equal(parts[:len(words)], words) && !slices.Contains(next, parts[len(words)]) {
			next = append(next, parts[len(words)])
		}
	}
	return next
}

func options(flags *flag.FlagSet) (all []string) {
	flags.VisitAll(func(f *flag.Flag) { all = append(all, Dashed(f.Name)) })
	return append(all, "--help")
}

func choices(f *flag.Flag) []string {
	if c, ok := f.Value.(*choice); ok {
		return c.of
	}
	return nil
}

// begin returns the texts that begin with the typed one.
func begin(all []string, typed string) (fitting []string) {
	for _, text := range all {
		if strings.HasPrefix(text, typed) {
			fitting = append(fitting, text)
		}
	}
	return fitting
}

// Shells are the shells that [Program.Script] knows.
var Shells = []string{"bash", "zsh", "fish"}

// Script returns the completion script of a shell. It runs the program's command __complete with the words.
func (p Program) Script(shell string) string {
	return strings.ReplaceAll(map[string]string{"bash": bash, "zsh": zsh, "fish": fish}[shell], "PROGRAM", p.Name)
}

// A colon and an equals sign separate words in bash, so the text up to the last of them is cut off each candidate.
const bash = `# Completion of PROGRAM for bash. Install it by: source <(PROGRAM completion bash)
_PROGRAM() {
	local line="${COMP_LINE:0:COMP_POINT}" words current candidate
	read -ra words <<<"$line"
	[[ $line == *' ' ]] && words+=("")
	current="${words[-1]}"
	local cut="${current%"${current##*[:=]}"}"
	COMPREPLY=()
	while IFS= read -r candidate; do
		COMPREPLY+=("$(printf %q "${candidate#"$cut"}")")
	done < <("${words[0]}" __complete -- "${words[@]:1}" 2>/dev/null)
}
complete -o default -F _PROGRAM PROGRAM
`

const zsh = `#compdef PROGRAM
# Completion of PROGRAM for zsh. Install it by: source <(PROGRAM completion zsh)
_PROGRAM() {
	local -a candidates
	candidates=("${(@f)$("${words[1]}" __complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
	candidates=("${(@)candidates:#}")
	if (( ${#candidates} )); then
		compadd -- "${candidates[@]}"
	else
		_files
	fi
}
compdef _PROGRAM PROGRAM
`

const fish = `# Completion of PROGRAM for fish. Install it by: PROGRAM completion fish | source
function __PROGRAM_complete
	set -l words (commandline -opc) (commandline -ct)
	$words[1] __complete -- $words[2..-1] 2>/dev/null
end
complete -c PROGRAM -a '(__PROGRAM_complete)'
`

// Man writes the program's manual page, in the language of man(7).
func (p Program) Man(w io.Writer) {
	escape := func(s string) string {
		s = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(s)
		var lines []string
		for line := range strings.SplitSeq(s, "\n") {
			if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
				line = `\&` + line
			}
			lines = append(lines, line)
		}
		return strings.Join(lines, "\n")
	}
	description, _, _ := strings.Cut(p.Description, "\n")
	fmt.Fprintf(w, ".TH %s 1\n.SH NAME\n%s \\- %s\n", strings.ToUpper(p.Name), p.Name, escape(description))
	fmt.Fprintf(w, ".SH SYNOPSIS\n.B %s\nCOMMAND [OPTIONS]\n", p.Name)
	fmt.Fprintf(w, ".SH DESCRIPTION\n%s\n", strings.ReplaceAll(escape(p.Description), "\n\n", "\n.PP\n"))
	for i, c := range p.Commands {
		if c.Section != "" || i == 0 {
			fmt.Fprintf(w, ".SH %s\n", strings.ToUpper(cmp.Or(c.Section, "Commands")))
		}
		if c.Help == "" {
			continue
		}
		fmt.Fprintf(w, ".SS %s %s\n%s\n", escape(p.Name+" "+c.Name), escape(c.Arguments), escape(c.Help))
		if c.Example != "" {
			fmt.Fprintf(w, ".PP\nExample:\n.PP\n.nf\n%s\n.fi\n", escape(c.Example))
		}
		flags := flag.NewFlagSet(c.Name, flag.ContinueOnError)
		c.New().Flags(flags)
		flags.VisitAll(func(f *flag.Flag) {
			name, usage := flag.UnquoteUsage(f)
			line := Dashed(f.Name)
			if !isBool(f) {
				line += " " + name
				usage = strings.TrimPrefix(usage, name+": ")
			}
			fmt.Fprintf(w, ".TP\n.B %s\n%s\n", escape(line), escape(usage))
		})
	}
}
