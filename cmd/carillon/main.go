// Carillon is a self-hosted scheduling service: it fires callbacks at their instants, at least once, and in all but
// rare cases exactly once.
package main

import (
	"io"
	"os"

	"github.com/KimMachineGun/automemlimit/memlimit"

	"github.com/carillon-scheduler/carillon/access"
	"github.com/carillon-scheduler/carillon/access/limits"
	"github.com/carillon-scheduler/carillon/cmd/internal/cli"
	"github.com/carillon-scheduler/carillon/cmd/internal/remote"
	"github.com/carillon-scheduler/carillon/cmd/internal/service"
	"github.com/carillon-scheduler/carillon/secrets"
)

const description = "Carillon fires callbacks at their instants, even if a replica dies: at least " +
	"once, and in all but rare cases exactly once.\n\n" +
	"Options without a command are those of serve. Each of them can also be set by the environment variable that its " +
	"help names; other commands read the same variables. A value can be read from a file, as for secrets: " +
	"CARILLON_STORE_FILE=/run/secrets/store sets CARILLON_STORE to the content of that file."

// program returns the command line. A command is a line here and a file.
func program() cli.Program {
	return cli.Program{
		Name: "carillon", Description: description, Version: service.Version("carillon"),
		Default: "serve", Environment: "CARILLON_",
		Commands: append([]cli.Command{
			{
				Section: "Commands of a replica, and on a store",
				Name:    "serve", Help: serveHelp, New: func() cli.Runner { return &serveCommand{} },
				Example: "carillon serve --store=mongodb://db.example.com/carillon",
			},
			{
				Name: "demo", Help: demoHelp, New: func() cli.Runner { return &demoCommand{} },
				Example: "carillon demo",
			},
			{
				Name: "export", Help: exportHelp, New: func() cli.Runner { return &exportCommand{} },
				Example: "carillon export --store=mongodb://db.example.com/carillon --output=carillon.export",
			},
			{
				Name: "import", Help: importHelp, New: func() cli.Runner { return audited("import", &importCommand{}) },
				Example: "carillon import --store=sqlite:other.db --input=carillon.export",
			},
			{
				Name: "keys create", Help: keysCreateHelp,
				New:     func() cli.Runner { return audited("keys create", &keysCreateCommand{}) },
				Example: "carillon keys create --store=mongodb://db.example.com/carillon --role=admin",
			},
			{
				Name: "keys list", Help: keysListHelp, New: func() cli.Runner { return &keysListCommand{} },
				Example: "carillon keys list --store=mongodb://db.example.com/carillon",
			},
			{
				Name: "keys rotate", Arguments: "ID", Help: keysRotateHelp,
				New:     func() cli.Runner { return audited("keys rotate", &keysRotateCommand{}) },
				Example: "carillon keys rotate 4iC0dQxYb7Zr --store=sqlite:carillon.db --overlap=1d",
			},
			{
				Name: "keys revoke", Arguments: "ID", Help: keysRevokeHelp,
				New:     func() cli.Runner { return audited("keys revoke", &keysRevokeCommand{}) },
				Example: "carillon keys revoke 4iC0dQxYb7Zr --store=sqlite:carillon.db",
			},
			{
				Name: "secrets new-key", Arguments: "FILE", Help: newKeyHelp,
				New:     func() cli.Runner { return &secretsNewKeyCommand{} },
				Example: "carillon secrets new-key carillon.key",
			},
			{
				Name: "secrets reencrypt", Help: reencryptHelp,
				New:     func() cli.Runner { return audited("secrets reencrypt", &secretsReencryptCommand{}) },
				Example: "carillon secrets reencrypt --store=sqlite:carillon.db --encryption-key-file=new.key,carillon.key",
			},
			copying("secrets", copyHelp, secrets.Copy),
			copying("keys", keysCopyHelp, access.Copy),
			copying("limits", limitsCopyHelp, limits.Copy),
			{
				Name: "shard", Help: shardHelp, New: func() cli.Runner { return audited("shard", &shardCommand{}) },
				Example: "carillon shard --store=mongodb://router.example.com/carillon",
			},
			{
				Name: "next", Arguments: "CRONTAB", Help: nextHelp, New: func() cli.Runner { return &nextCommand{} },
				Example: "carillon next '30 9 * * mon-fri' --timezone=Europe/Paris",
			},
			{
				Name: "healthcheck", Help: healthcheckHelp, New: func() cli.Runner { return &healthcheckCommand{} },
				Example: "carillon healthcheck --listen=127.0.0.1:8080",
			},
		}, remote.Commands(program)...),
	}
}

func main() {
	service.CollectRarely()
	service.LimitMemory(memlimit.FromCgroup)
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

func run(args []string, stdout, stderr io.Writer) (code int) {
	return program().Run(args, stdout, stderr)
}
