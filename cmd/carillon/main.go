// Carillon is a self-hosted scheduling service: it calls what it is told to, when it is told to, at least once, and in
// all but rare cases exactly once.
package main

import (
	"io"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/carillon-scheduler/carillon/cmd/internal/cli"
	"github.com/carillon-scheduler/carillon/cmd/internal/service"
)

// commands is the command line.
type commands struct {
	Serve       serveCommand       `cmd:"" help:"Run the service: the HTTP API, and the dispatcher that fires what is due."`
	Demo        demoCommand        `cmd:"" help:"See it work: run the whole service for some seconds on a temporary file, and print what it delivers to a local webhook."`
	Export      exportCommand      `cmd:"" help:"Write all that a store holds to a file, to move it to another store. Stop the replicas first."`
	Import      importCommand      `cmd:"" help:"Read into a store what an export holds. Doing it again changes nothing, so one that broke off is completed by that."`
	Next        nextCommand        `cmd:"" help:"Show when a crontab fires next, in UTC and in a time zone. Needs no service."`
	Healthcheck healthcheckCommand `cmd:"" help:"Ask the service that runs on this machine whether it does, for the HEALTHCHECK of a container: exit code 0 if so, else 1."`
	Version     kong.VersionFlag   `env:"-" help:"Print the version and exit."`
}

const description = `Carillon calls what you tell it to, when you tell it to, whichever replica dies: at least once, and in all but rare cases exactly once.

Options without a command are those of serve. Every option can also be set by the environment variable named with it. A variable's value can be read from a file, as for
secrets: CARILLON_STORE_FILE=/run/secrets/store sets CARILLON_STORE to what that file holds.`

func main() {
	service.CollectRarely()
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

func run(args []string, stdout, stderr io.Writer) (code int) {
	var commands commands
	return cli.Run(cli.Program{
		Name: "carillon", Description: description, Version: service.Version("carillon"),
		Before: func(model *kong.Node) { commands.Serve.unknown = unknownVariables(model, os.Environ()) },
	}, &commands, asMeant(args), stdout, stderr)
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
