// Package cli is what the command lines of Carillon's programs have in common.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"
)

// The exit codes, besides 0.
const (
	ExitFailure = 1 // something that was needed could not be reached, or failed
	ExitUsage   = 2 // the configuration is wrong
)

// Program is a program with a command line.
type Program struct {
	// Name is that of the executable.
	Name string
	// Description is what its help begins with.
	Description string
	// Version is the line that --version prints.
	Version string
	// Before is called before a command runs.
	Before func(model *kong.Node)
}

// Output is where commands write.
type Output struct{ Stdout, Stderr io.Writer }

// UsageError is an error of the configuration: trying again can't mend it.
type UsageError struct{ error }

// Usage makes an error one of the configuration.
func Usage(err error) error { return UsageError{err} }

// Usagef makes an error of the configuration, as [fmt.Errorf] does.
func Usagef(format string, args ...any) error { return UsageError{fmt.Errorf(format, args...)} }

// Unwrap is the error without this.
func (e UsageError) Unwrap() error { return e.error }

// Run runs the command that the arguments name, of the commands that are the fields of a struct, and gives the exit
// code. The first interrupt or SIGTERM ends the command's context.
func Run(p Program, commands any, args []string, stdout, stderr io.Writer) (code int) {
	exited := false
	parser, err := kong.New(commands,
		kong.Name(p.Name),
		kong.Description(p.Description),
		kong.Vars{"version": p.Version},
		kong.DefaultEnvars("CARILLON"),
		kong.Resolvers(kong.ResolverFunc(fromFile)),
		kong.Writers(stdout, stderr),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 120}),
		kong.Exit(func(c int) { exited, code = true, c }), // after --help and --version
	)
	if err != nil {
		panic(err) // a mistake in the tags
	}
	command, err := parser.Parse(args)
	if exited {
		return code
	}
	if err != nil {
		return p.fail(stderr, UsageError{err})
	}
	// The first signal ends the command in good order; after it, signals have their usual effect again.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	command.BindTo(ctx, (*context.Context)(nil))
	command.Bind(Output{stdout, stderr})
	if p.Before != nil {
		p.Before(parser.Model.Node)
	}
	return p.fail(stderr, command.Run())
}

// fail prints an error, if there is one, and gives the exit code for it.
func (p Program) fail(stderr io.Writer, err error) int {
	if err == nil {
		return 0
	}
	if _, ok := errors.AsType[UsageError](err); ok {
		fmt.Fprintf(stderr, "%s: %v\nRun \"%[1]s --help\", or \"%[1]s COMMAND --help\", for what there is.\n", p.Name, err)
		return ExitUsage
	}
	fmt.Fprintf(stderr, "%s: %v\n", p.Name, err)
	return ExitFailure
}

// fromFile reads an option's value from the file that its variable with _FILE behind it names.
func fromFile(_ *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
	for _, name := range flag.Envs {
		path := os.Getenv(name + "_FILE")
		if path == "" {
			continue
		}
		if os.Getenv(name) != "" {
			return nil, fmt.Errorf("%s and %s_FILE are both set; set one of them", name, name)
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("%s_FILE: %w", name, err)
		}
		return strings.TrimRight(string(content), "\r\n"), nil // which editors leave in a file of one line
	}
	return nil, nil
}
