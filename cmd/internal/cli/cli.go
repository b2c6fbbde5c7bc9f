// Package cli is the command line of Carillon's programs: commands whose options are flags of the standard library.
//
// An option can also be set by an environment variable, or by a file that a variable names; the command line overrides
// both. Unlike most libraries of this kind, this package does not look up methods by name at run time: the linker would
// then keep every exported method of every type, which made the service a third larger.
package cli

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"reflect"
	"slices"
	"strings"
	"syscall"

	"github.com/carillon-scheduler/carillon/store/storeurl/nearest"
)

// The exit codes, besides 0 and those of an [ExitError].
const (
	ExitFailure = 1 // a resource could not be reached, or an operation failed
	ExitUsage   = 2 // the configuration is wrong
)

// Program is a program with a command line.
type Program struct {
	// Name is the name of the executable.
	Name string
	// Description is the first part of its help.
	Description string
	// Version is the output of --version.
	Version string
	// Commands are listed in its help in this order.
	Commands []Command
	// Stdin is the input of commands; nil means the standard input.
	Stdin io.Reader
	// Default is the command of options without a command; empty for none.
	Default string
	// Environment is the prefix of the variables that set options; empty for none. Variables set the options of the
	// default command, and options of the same names and kinds of other commands: one that takes another kind of value
	// has nothing but its name in common.
	Environment string
}

// Command is one command of a program.
type Command struct {
	// Name is a word; or two, with a space between them, for a command of a group.
	Name string
	// Arguments are the command's arguments as its help shows them; empty if it takes none.
	Arguments string
	// Help describes the command in a sentence or two. A command without it is not listed.
	Help string
	// Section is the heading under which the command and those after it are listed; empty for the heading before.
	Section string
	// Example is a command line that its help shows, or several on lines of their own; empty for none.
	Example string
	// Complete returns the arguments that may follow those given, for a shell's completion; the last one given is being
	// typed. The options in the arguments have been set on the Runner. Nil is none.
	Complete func(ctx context.Context, r Runner, arguments []string) []string
	// New makes the command.
	New func() Runner
}

// Runner is a command that can be run, once.
type Runner interface {
	// Flags declares the command's options, and sets their defaults. Each usage begins with the name of the value in
	// backquotes and a colon, except for boolean options.
	Flags(f *flag.FlagSet)
	// Run runs the command. A [UsageError] is an error of its options or arguments. ctx ends with the first interrupt or
	// SIGTERM.
	Run(ctx context.Context, in Input) error
}

// Input has the arguments and the streams of a command.
type Input struct {
	Arguments      []string
	Stdin          io.Reader
	Stdout, Stderr io.Writer
}

// ExitError ends the program with a code of its own. With a nil Err, nothing is printed.
type ExitError struct {
	Code int
	Err  error
}

// Error implements error.
func (e *ExitError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit code %d", e.Code)
	}
	return e.Err.Error()
}

// Unwrap returns the inner error.
func (e *ExitError) Unwrap() error { return e.Err }

// UsageError is an error of the configuration, which a retry can't fix.
type UsageError struct{ error }

// Usage makes an error a [UsageError].
func Usage(err error) error { return UsageError{err} }

// Usagef makes a [UsageError], like [fmt.Errorf].
func Usagef(format string, args ...any) error { return UsageError{fmt.Errorf(format, args...)} }

// Unwrap returns the inner error.
func (e UsageError) Unwrap() error { return e.error }

// Run runs the command that the arguments name, and returns the exit code.
func (p Program) Run(args []string, stdout, stderr io.Writer) (code int) {
	err := p.run(args, stdout, stderr)
	if err == nil {
		return 0
	}
	if _, ok := errors.AsType[UsageError](err); ok {
		fmt.Fprintf(stderr, "%s: %v\nRun \"%[1]s --help\", or \"%[1]s COMMAND --help\", for help.\n", p.Name, err)
		return ExitUsage
	}
	exit, ok := errors.AsType[*ExitError](err)
	if !ok {
		exit = &ExitError{ExitFailure, err}
	}
	if exit.Err != nil {
		fmt.Fprintf(stderr, "%s: %v\n", p.Name, err)
	}
	return exit.Code
}

func (p Program) run(args []string, stdout, stderr io.Writer) error {
	name, args := p.command(args)
	switch name {
	case "--help":
		p.help(stdout)
		return nil
	case "--version":
		fmt.Fprintln(stdout, p.Version)
		return nil
	case "":
		return Usagef("name a command: %s", strings.Join(p.names(), ", "))
	}
	i := p.index(name)
	if group := p.group(name); i < 0 && len(group) > 0 {
		if slices.Contains(args, "--help") || slices.Contains(args, "-h") {
			p.groupHelp(stdout, name)
			return nil
		}
		return Usagef("%s is not a command by itself; name one of: %s", name, strings.Join(group, ", "))
	}
	if i < 0 {
		return Usagef("there is no command %q%s", name, meant(nearest.Name(name, p.names())))
	}
	command := p.Commands[i]
	runner := command.New()
	flags := flag.NewFlagSet(command.Name, flag.ContinueOnError)
	runner.Flags(flags)
	arguments, asked, err := parse(flags, args)
	switch {
	case asked == "--help":
		p.commandHelp(stdout, command, flags)
		return nil
	case asked == "--version":
		fmt.Fprintln(stdout, p.Version)
		return nil
	case err != nil:
		return Usage(err)
	case len(arguments) > 0 && command.Arguments == "":
		return Usagef("%s takes no argument, such as %q", name, arguments[0])
	}
	if err := p.fromEnvironment(flags); err != nil {
		return Usage(err)
	}
	// The first signal ends the command gracefully; later signals have their usual effect.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	stdin := p.Stdin
	if stdin == nil {
		stdin = os.Stdin
	}
	return runner.Run(ctx, Input{arguments, stdin, stdout, stderr})
}

// command splits arguments into the command's name, or --help or --version, and the rest.
func (p Program) command(args []string) (name string, rest []string) {
	if len(args) == 0 {
		return "", nil
	}
	switch name, rest = args[0], args[1:]; {
	case name == "version":
		return "--version", nil
	case name == "-h", name == "help" && len(rest) == 0:
		return "--help", nil
	case name == "help":
		name, _ = p.command(rest)
		return name, []string{"--help"}
	case strings.HasPrefix(name, "-") && name != "--help" && name != "--version" && p.Default != "":
		return p.Default, args // so that options can follow the name of an image
	}
	if len(rest) > 0 && p.index(name+" "+rest[0]) >= 0 {
		return name + " " + rest[0], rest[1:]
	}
	return name, rest
}

// index returns the index of a command; negative if there is none of the name.
func (p Program) index(name string) int {
	return slices.IndexFunc(p.Commands, func(c Command) bool { return c.Name == name })
}

// group returns the names of the commands that begin with a word.
func (p Program) group(word string) (names []string) {
	for _, name := range p.names() {
		if strings.HasPrefix(name, word+" ") {
			names = append(names, name)
		}
	}
	return names
}

func (p Program) names() (names []string) {
	for _, c := range p.Commands {
		if c.Help != "" {
			names = append(names, c.Name)
		}
	}
	return names
}

// parse sets the flags in the arguments, and returns the other arguments; or --help or --version, if there is one.
func parse(flags *flag.FlagSet, args []string) (others []string, asked string, err error) {
	for len(args) > 0 {
		arg := args[0]
		args = args[1:]
		switch {
		case arg == "-h", arg == "--help":
			return nil, "--help", nil
		case arg == "--version":
			return nil, "--version", nil
		case arg == "--":
			return append(others, args...), "", nil
		case !strings.HasPrefix(arg, "-") || arg == "-":
			others = append(others, arg)
			continue
		}
		name, value, valued := option(arg, flags)
		f := flags.Lookup(name)
		switch {
		case f == nil:
			return nil, "", fmt.Errorf("unknown option %s%s", arg[:len(arg)-len(value)], meant(nearestFlag(name, flags)))
		case valued:
		case isBool(f):
			value = "true"
		case len(args) == 0 || strings.HasPrefix(args[0], "--"):
			return nil, "", fmt.Errorf("%s needs a value", Dashed(name))
		default:
			value, args = args[0], args[1:]
		}
		if err := set(flags, f, value); err != nil {
			return nil, "", err
		}
	}
	return others, "", nil
}

// option splits an argument into the name of an option and its value. An option whose name is one letter has one dash,
// and its value may follow directly, as in -ofile.
func option(arg string, flags *flag.FlagSet) (name, value string, valued bool) {
	long, isLong := strings.CutPrefix(arg, "--")
	if isLong {
		name, value, valued = strings.Cut(long, "=")
		return name, value, valued
	}
	if short := arg[1:]; len(short) > 1 && short[1] != '=' && flags.Lookup(short[:1]) != nil {
		return short[:1], short[1:], true
	}
	name, value, valued = strings.Cut(arg[1:], "=")
	if len(name) > 1 {
		name = "-" + name // an option of more letters has two dashes, so there is none of this name
	}
	return name, value, valued
}

// Dashed returns an option's name with its dashes.
func Dashed(name string) string {
	if len(name) == 1 {
		return "-" + name
	}
	return "--" + name
}

// set sets a flag. The error for an invalid value names the valid ones.
func set(flags *flag.FlagSet, f *flag.Flag, value string) error {
	err := flags.Set(f.Name, value)
	if err == nil {
		return nil
	}
	getter, ok := f.Value.(flag.Getter)
	if !ok { // a type of this package, whose error is complete
		return fmt.Errorf("%s: %w", Dashed(f.Name), err)
	}
	must := "a number"
	switch getter.Get().(type) {
	case int:
		must = "a whole number"
	case bool:
		must = "true or false"
	}
	return fmt.Errorf("%s: must be %s, not %q", Dashed(f.Name), must, value)
}

func isBool(f *flag.Flag) bool {
	b, ok := f.Value.(interface{ IsBoolFlag() bool })
	return ok && b.IsBoolFlag()
}

// meant returns a question with the name that was probably meant, if there is one.
func meant(name string) string {
	if name == "" {
		return ""
	}
	return fmt.Sprintf("; is %s meant?", name)
}

func nearestFlag(name string, flags *flag.FlagSet) string {
	var known []string
	flags.VisitAll(func(f *flag.Flag) { known = append(known, f.Name) })
	if like := nearest.Name(name, known); like != "" {
		return "--" + like
	}
	return ""
}

// Variables returns the environment variables that set options, by the options' names.
func (p Program) Variables() map[string]string { return p.variables(p.defaultFlags()) }

// variables returns the environment variables that set a command's options, by the options' names.
func (p Program) variables(of *flag.FlagSet) map[string]string {
	variables := make(map[string]string)
	if p.Environment == "" {
		return variables
	}
	standard := p.defaultFlags()
	of.VisitAll(func(f *flag.Flag) {
		if same := standard.Lookup(f.Name); same != nil && reflect.TypeOf(same.Value) == reflect.TypeOf(f.Value) {
			variables[f.Name] = p.Environment + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		}
	})
	return variables
}

// defaultFlags returns the options of the default command.
func (p Program) defaultFlags() *flag.FlagSet {
	flags := flag.NewFlagSet("", flag.ContinueOnError)
	for _, c := range p.Commands {
		if c.Name == p.Default {
			c.New().Flags(flags)
		}
	}
	return flags
}

// fromEnvironment sets the flags that the command line has not set: by their variables, or by files named in variables
// with the suffix _FILE. An empty variable sets nothing.
func (p Program) fromEnvironment(flags *flag.FlagSet) error {
	variables := p.variables(flags)
	given := make(map[string]bool)
	flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
	var errs []error
	flags.VisitAll(func(f *flag.Flag) {
		variable := variables[f.Name]
		if variable == "" || given[f.Name] {
			return
		}
		value, err := valueOf(variable)
		if err == nil && value != "" {
			if err = set(flags, f, value); err != nil {
				err = fmt.Errorf("%w (from %s)", err, variable)
			}
		}
		errs = append(errs, err)
	})
	return cmp.Or(errs...)
}

// valueOf returns the value of a variable, or the content of the file that it names.
func valueOf(variable string) (string, error) {
	value, path := os.Getenv(variable), os.Getenv(variable+"_FILE")
	switch {
	case path == "":
		return value, nil
	case value != "":
		return "", fmt.Errorf("%s and %s_FILE are both set; set one of them", variable, variable)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("%s_FILE: %w", variable, err)
	}
	return strings.TrimRight(string(content), "\r\n"), nil // editors add it to a file of one line
}
