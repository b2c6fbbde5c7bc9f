// Carillon is a self-hosted scheduling service: it fires callbacks at their instants, at least once, and in all but
// rare cases exactly once.
package main

import (
	"io"
	"os"

	"github.com/carillon-scheduler/carillon/access"
	"github.com/carillon-scheduler/carillon/access/limits"
	"github.com/carillon-scheduler/carillon/cmd/internal/cli"
	"github.com/carillon-scheduler/carillon/cmd/internal/service"
	"github.com/carillon-scheduler/carillon/secrets"
)

const description = "Carillon fires callbacks at their instants, even if a replica dies: at least " +
	"once, and in all but rare cases exactly once.\n\n" +
	"Options without a command are those of serve. Each of them can also be set by the environment variable that its " +
	"help names; other commands read the same variables. A value can be read from a file, as for secrets: " +
	"CARILLON_STORE_FILE=/run/secrets/store sets CARILLON_STORE to the content of that file."

// program is the command line. A command is a line here and a file.
func program() cli.Program {
	return cli.Program{
		Name: "carillon", Description: description, Version: service.Version("carillon"),
		Default: "serve", Environment: "CARILLON_",
		Commands: []cli.Command{
			{Name: "serve", Help: serveHelp, New: func() cli.Runner { return &serveCommand{} }},
			{Name: "demo", Help: demoHelp, New: func() cli.Runner { return &demoCommand{} }},
			{Name: "export", Help: exportHelp, New: func() cli.Runner { return &exportCommand{} }},
			{Name: "import", Help: importHelp,
				New: func() cli.Runner { return audited("import", &importCommand{}) }},
			{Name: "keys create", Help: keysCreateHelp,
				New: func() cli.Runner { return audited("keys create", &keysCreateCommand{}) }},
			{Name: "keys list", Help: keysListHelp, New: func() cli.Runner { return &keysListCommand{} }},
			{Name: "keys rotate", Arguments: "ID", Help: keysRotateHelp,
				New: func() cli.Runner { return audited("keys rotate", &keysRotateCommand{}) }},
			{Name: "keys revoke", Arguments: "ID", Help: keysRevokeHelp,
				New: func() cli.Runner { return audited("keys revoke", &keysRevokeCommand{}) }},
			{Name: "secrets new-key", Arguments: "FILE", Help: newKeyHelp,
				New: func() cli.Runner { return &secretsNewKeyCommand{} }},
			{Name: "secrets reencrypt", Help: reencryptHelp,
				New: func() cli.Runner { return audited("secrets reencrypt", &secretsReencryptCommand{}) }},
			copying("secrets", copyHelp, secrets.Copy),
			copying("keys", keysCopyHelp, access.Copy),
			copying("limits", limitsCopyHelp, limits.Copy),
			{Name: "next", Arguments: "CRONTAB", Help: nextHelp, New: func() cli.Runner { return &nextCommand{} }},
			{Name: "healthcheck", Help: healthcheckHelp, New: func() cli.Runner { return &healthcheckCommand{} }},
		},
	}
}

func main() {
	service.CollectRarely()
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

func run(args []string, stdout, stderr io.Writer) (code int) {
	return program().Run(args, stdout, stderr)
}
