// Carillon is a self-hosted scheduling service: it calls what it is told to, when it is told to, at least once, and in
// all but rare cases exactly once.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"
	"golang.org/x/net/http/httpguts"
)

// commands is the command line.
type commands struct {
	Serve       serveCommand       `cmd:"" help:"Run the service: the HTTP API, and the dispatcher that fires what is due."`
	Demo        demoCommand        `cmd:"" help:"See it work: run the whole service for some seconds on a temporary file, and print what it delivers to a local webhook."`
	Export      exportCommand      `cmd:"" help:"Write all that a store holds to a file, to move it to another store. Stop the replicas first."`
	Import      importCommand      `cmd:"" help:"Read into a store what an export holds. Doing it again changes nothing, so one that broke off is completed by that."`
	Bench       benchCommands      `cmd:"" help:"Measure how fast and how punctual Carillon is on this machine and store, beside what they could do at best."`
	Next        nextCommand        `cmd:"" help:"Show when a crontab fires next, in UTC and in a time zone. Needs no service."`
	Healthcheck healthcheckCommand `cmd:"" help:"Ask the service that runs on this machine whether it does, for the HEALTHCHECK of a container: exit code 0 if so, else 1."`
	Part        benchPart          `cmd:"" name:"bench-part" hidden:"" help:"Be a process of a bench."`
	Version     kong.VersionFlag   `env:"-" help:"Print the version and exit."`
}

const description = `Carillon calls what you tell it to, when you tell it to, whichever replica dies: at least once, and in all but rare cases exactly once.

Options without a command are those of serve. Every option can also be set by the environment variable named with it. A variable's value can be read from a file, as for
secrets: CARILLON_STORE_FILE=/run/secrets/store sets CARILLON_STORE to what that file holds.`

// The exit codes, besides 0.
const (
	exitFailure = 1 // something that was needed could not be reached, or failed
	exitUsage   = 2 // the configuration is wrong
)

func main() {
	collectRarely()
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

func run(args []string, stdout, stderr io.Writer) (code int) {
	var cli commands
	exited := false
	parser, err := kong.New(&cli,
		kong.Name("carillon"),
		kong.Description(description),
		kong.Vars{"version": version()},
		kong.DefaultEnvars("CARILLON"),
		kong.Resolvers(kong.ResolverFunc(fromFile)),
		kong.Writers(stdout, stderr),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 120}),
		kong.Exit(func(c int) { exited, code = true, c }), // after --help and --version
	)
	if err != nil {
		panic(err) // a mistake in the tags
	}
	command, err := parser.Parse(asMeant(args))
	if exited {
		return code
	}
	if err != nil {
		return fail(stderr, usageError{err})
	}
	// The first signal ends the command in good order; after it, signals have their usual effect again.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	command.BindTo(ctx, (*context.Context)(nil))
	command.Bind(output{stdout, stderr})
	cli.Serve.unknown = unknownVariables(parser.Model.Node, os.Environ())
	return fail(stderr, command.Run())
}

// asMeant puts in arguments what goes without saying: that options alone are those of serve, so that they can stand
// behind the name of an image; that help and version are asked for as by many programs; and that what looks like a
// negative number is the value of the option before it.
func asMeant(args []string) []string {
	var meant []string
	switch {
	case len(args) == 0:
	case args[0] == "help":
		return append(slices.Clone(args[1:]), "--help")
	case args[0] == "version":
		return append([]string{"--version"}, args[1:]...)
	case strings.HasPrefix(args[0], "-") && !slices.Contains([]string{"-h", "--help", "--version"}, args[0]):
		meant = append(meant, "serve")
	}
	for _, arg := range args {
		if last := len(meant) - 1; last >= 0 && negative.MatchString(arg) && strings.HasPrefix(meant[last], "--") && !strings.Contains(meant[last], "=") {
			meant[last] += "=" + arg
			continue
		}
		meant = append(meant, arg)
	}
	return meant
}

var negative = regexp.MustCompile(`^-[0-9.]`)

// output is where commands write.
type output struct{ stdout, stderr io.Writer }

// usageError is an error of the configuration.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// fail prints an error, if there is one, and gives the exit code for it.
func fail(stderr io.Writer, err error) int {
	if err == nil {
		return 0
	}
	if _, ok := errors.AsType[usageError](err); ok {
		fmt.Fprintf(stderr, "carillon: %v\nRun \"carillon --help\", or \"carillon COMMAND --help\", for what there is.\n", err)
		return exitUsage
	}
	fmt.Fprintf(stderr, "carillon: %v\n", err)
	return exitFailure
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
		return trimNewline(string(content)), nil
	}
	return nil, nil
}

// trimNewline takes off the line end that editors leave in a file of one line.
func trimNewline(s string) string {
	for len(s) > 0 && (s[len(s)-1] == '\n' || s[len(s)-1] == '\r') {
		s = s[:len(s)-1]
	}
	return s
}

// release is the version that the linker was told, where there was no repository to look at; see .ci/build.
var release string

// moduleVersion is that of the module alone.
func moduleVersion() string {
	v, _, _ := build()
	return v
}

// userAgent names the program to receivers, with its version unless a header can't carry that, such as "(devel)".
func userAgent(version string) string {
	if !httpguts.ValidHeaderFieldName(version) { // which is of the same characters as a product's version
		return "carillon"
	}
	return "carillon/" + version
}

// version is that of the module, or of the commit that was built.
func version() string {
	v, revision, goVersion := build()
	if revision != "" {
		revision = " (" + revision + ")"
	}
	return fmt.Sprintf("carillon %s%s, %s", v, revision, goVersion)
}

// build tells the module's version, or the release that it was built as, the commit that was built (empty if that is
// not known), and the version of Go.
func build() (version, revision, goVersion string) {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return cmp.Or(release, "unknown"), "", runtime.Version()
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			revision = s.Value
		}
	}
	return cmp.Or(release, info.Main.Version), revision, info.GoVersion
}
