package remote

import (
	"slices"

	"github.com/carillon-scheduler/carillon/cmd/internal/cli"
)

// Commands returns the commands that ask a running service. The program is that which has them, for the completion of
// its commands and for its manual page.
func Commands(program func() cli.Program) []cli.Command {
	all := slices.Concat(
		serviceCommands(), jobCommands(), fileCommands(), deadLetterCommands(), tenantCommands(), keyCommands(),
		secretCommands(), contextCommands(),
	)
	all[0].Section = "Commands that ask a running service (--url, CARILLON_URL or a context)"
	shell := shellCommands(program)
	shell[0].Section = "Commands for the shell"
	return append(all, shell...)
}
