package cli_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/cmd/internal/cli"
)

// ring is a command that prints its options and arguments.
type ring struct {
	bell  string
	often int
	loud  bool
	after time.Duration
	who   []string
	tune  string
}

func (r *ring) Flags(f *flag.FlagSet) {
	f.StringVar(&r.bell, "bell", "great", "`NAME`: The bell.")
	f.IntVar(&r.often, "how-often", 1, "`N`: How often.")
	f.BoolVar(&r.loud, "loud", false, "Ring it loudly.")
	cli.Duration(f, &r.after, "after", 90*time.Minute, "`DURATION`: When.")
	cli.List(f, &r.who, "who", "`NAMES`: Who hears it.")
	f.StringVar(&r.bell, "b", "great", "`NAME`: The bell.")
	cli.Choice(f, &r.tune, "tune", []string{"round", "peal"}, "`TUNE`: The tune.")
}

func (r *ring) Run(_ context.Context, in cli.Input) error {
	if r.bell == "cracked" {
		return errors.New("it makes no sound")
	}
	if r.bell == "stolen" {
		return &cli.ExitError{Code: 7, Err: errors.New("it is gone")}
	}
	fmt.Fprintf(in.Stdout, "%s %d %t %s %v %s %v", r.bell, r.often, r.loud, r.after, r.who, r.tune, in.Arguments)
	return nil
}

// oil is a command with an option that ring has too, and one that it has not.
type oil struct{ bell, can string }

func (o *oil) Flags(f *flag.FlagSet) {
	f.StringVar(&o.bell, "bell", "", "`NAME`: The bell.")
	f.StringVar(&o.can, "can", "small", "`SIZE`: The can.")
}

func (o *oil) Run(_ context.Context, in cli.Input) error {
	fmt.Fprint(in.Stdout, o.bell, " ", o.can)
	return nil
}

var tower = cli.Program{
	Name: "tower", Description: "Rings bells.", Version: "tower 1", Default: "ring", Environment: "TOWER_",
	Commands: []cli.Command{
		{Name: "ring", Arguments: "PLACE", Help: "Ring a bell.", New: func() cli.Runner { return &ring{} }},
		{Name: "oil", Help: "Oil a bell.", New: func() cli.Runner { return &oil{} }},
		{Name: "rope list", Help: "List ropes.", New: func() cli.Runner { return &oil{} }},
		{Name: "rope splice", Arguments: "ROPE", Help: "Splice a rope.", New: func() cli.Runner { return &ring{} }},
		{Name: "secret", New: func() cli.Runner { return &oil{} }},
		{Name: "tuning", New: func() cli.Runner { return &tuning{} }},
	},
}

// tuning has an option of the name that another one has in the default command.
type tuning struct{ tune bool }

func (c *tuning) Flags(f *flag.FlagSet) { f.BoolVar(&c.tune, "tune", false, "Tune it.") }

func (c *tuning) Run(_ context.Context, in cli.Input) error {
	fmt.Fprint(in.Stdout, c.tune)
	return nil
}

func TestRun(t *testing.T) {
	file := filepath.Join(t.TempDir(), "bell")
	if err := os.WriteFile(file, []byte("treble\r\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		args string // with spaces between them
		env  string
		code int
		want string // the output, or in the error
	}{
		{"defaults", "ring", "", 0, "great 1 false 1h30m0s [] round []"},
		{"values", "ring --bell=tenor --how-often 2 --loud --tune=peal --after=1d", "", 0, "tenor 2 true 24h0m0s [] peal []"},
		{"the last wins", "ring --bell=tenor --bell=treble", "", 0, "treble 1 false 1h30m0s [] round []"},
		{"lists add", "ring --who=ann,bob --who cid", "", 0, "great 1 false 1h30m0s [ann bob cid] round []"},
		{"on or off", "ring --loud=false", "", 0, "great 1 false 1h30m0s [] round []"},
		{"negative number", "ring --how-often -3", "", 0, "great -3 false 1h30m0s [] round []"},
		{"arguments between options", "ring here --loud there", "", 0, "great 1 true 1h30m0s [] round [here there]"},
		{"arguments like options", "ring -- --loud", "", 0, "great 1 false 1h30m0s [] round [--loud]"},
		{"options alone", "--loud", "", 0, "great 1 true 1h30m0s [] round []"},
		{"a hidden command", "secret", "", 0, " small"},

		{"short", "ring -b tenor", "", 0, "tenor 1 false 1h30m0s [] round []"},
		{"short in one", "ring -btenor", "", 0, "tenor 1 false 1h30m0s [] round []"},
		{"short with a sign", "ring -b=-", "", 0, "- 1 false 1h30m0s [] round []"},
		{"short without a value", "ring -b", "", cli.ExitUsage, "-b needs a value"},
		{"short with two dashes", "ring --b=tenor", "", 0, "tenor 1 false 1h30m0s [] round []"},
		{"long with one dash", "ring -how-often=2", "", cli.ExitUsage, "unknown option -how-often="},
		{"own code", "ring --bell=stolen", "", 7, "tower: it is gone"},

		{"two words", "rope list --can=x", "", 0, " x"},
		{"two words and an argument", "rope splice hemp --loud", "", 0, "great 1 true 1h30m0s [] round [hemp]"},

		{"variable", "ring", "TOWER_HOW_OFTEN=4", 0, "great 4 false 1h30m0s [] round []"},
		{"variable and option", "ring --how-often=5", "TOWER_HOW_OFTEN=4", 0, "great 5 false 1h30m0s [] round []"},
		{"variable that is on or off", "ring", "TOWER_LOUD=true", 0, "great 1 true 1h30m0s [] round []"},
		{"empty variable", "ring", "TOWER_BELL=", 0, "great 1 false 1h30m0s [] round []"},
		{"file", "ring", "TOWER_BELL_FILE=" + file, 0, "treble 1 false 1h30m0s [] round []"},
		{"variable of another command's option", "oil", "TOWER_BELL=tenor", 0, "tenor small"},
		{"no variable", "oil", "TOWER_CAN=large", 0, " small"},
		{"variable of another kind of option", "tuning", "TOWER_TUNE=peal", 0, "false"},
		{"an option of another kind", "tuning --tune", "TOWER_TUNE=peal", 0, "true"},

		{"failure", "ring --bell=cracked", "", cli.ExitFailure, "tower: it makes no sound\n"},
		{"no command", "", "", cli.ExitUsage, "name a command: ring, oil, rope list, rope splice\n"},
		{"one word of two", "rope", "", cli.ExitUsage, "rope is not a command by itself; name one of: rope list, rope splice\n"},
		{"another second word", "rope cut", "", cli.ExitUsage, "name one of: rope list, rope splice\n"},
		{"unknown command", "rign", "", cli.ExitUsage, `there is no command "rign"` + "\n"},
		{"mistyped command", "rings", "", cli.ExitUsage, `there is no command "rings"; is ring meant?`},
		{"unknown option", "oil --paint=SECRET", "", cli.ExitUsage, "unknown option --paint=\n"},
		{"mistyped option", "ring --belle=x", "", cli.ExitUsage, "is --bell meant?"},
		{"one dash", "oil -paint", "", cli.ExitUsage, "unknown option -paint\n"},
		{"no value", "ring --bell", "", cli.ExitUsage, "--bell needs a value"},
		{"an option for a value", "ring --bell --loud", "", cli.ExitUsage, "--bell needs a value"},
		{"no number", "ring --how-often=x", "", cli.ExitUsage, `--how-often: must be a whole number, not "x"`},
		{"neither on nor off", "ring --loud=x", "", cli.ExitUsage, `--loud: must be true or false, not "x"`},
		{"no duration", "ring --after=soon", "", cli.ExitUsage, "--after: must be a duration"},
		{"no choice", "ring --tune=jazz", "", cli.ExitUsage, `--tune: must be one of round, peal, not "jazz"`},
		{"by a variable", "ring", "TOWER_HOW_OFTEN=x", cli.ExitUsage, `--how-often: must be a whole number, not "x" (from TOWER_HOW_OFTEN)`},
		{"an argument too many", "oil there", "", cli.ExitUsage, `oil takes no argument, such as "there"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			if name, value, ok := strings.Cut(c.env, "="); ok {
				t.Setenv(name, value)
			}
			var stdout, stderr bytes.Buffer
			code := tower.Run(strings.Fields(c.args), &stdout, &stderr)
			if code != c.code {
				t.Errorf("exit code %d, want %d: %s", code, c.code, &stderr)
			}
			if c.code == 0 && stdout.String() != c.want || !strings.Contains(stdout.String()+stderr.String(), c.want) {
				t.Errorf("%q, %q, want %q", &stdout, &stderr, c.want)
			}
			if strings.Contains(stderr.String(), "SECRET") {
				t.Errorf("the message has a value: %s", &stderr)
			}
		})
	}
}

func TestHelp(t *testing.T) {
	program := "Usage: tower COMMAND [OPTIONS]\n\nRings bells.\n\nCommands:\n  ring PLACE\n      Ring a bell.\n  oil\n      Oil a bell.\n" +
		"  rope list\n      List ropes.\n  rope splice ROPE\n      Splice a rope.\n\n" +
		"Run \"tower COMMAND --help\" for a command's options.\n"
	oiling := "Usage: tower oil [OPTIONS]\n\nOil a bell.\n\nOptions:\n  --bell=NAME  $TOWER_BELL\n      The bell.\n  --can=SIZE\n" +
		"      The can. (small)\n  --help\n      Print this.\n  --version\n      Print the version.\n"
	listing := strings.NewReplacer("tower oil", "tower rope list", "Oil a bell", "List ropes").Replace(oiling)
	ropes := "Usage: tower rope COMMAND [OPTIONS]\n\nCommands:\n  rope list\n      List ropes.\n  rope splice ROPE\n" +
		"      Splice a rope.\n\nRun \"tower rope COMMAND --help\" for a command's options.\n"
	for args, want := range map[string]string{
		"--help": program, "-h": program, "help": program, "rope --help": ropes, "help rope": ropes,
		"rope list --help": listing, "help rope list": listing,
		"oil --help": oiling, "oil -h": oiling, "help oil": oiling, "oil --bell=x --help": oiling,
		"version": "tower 1\n", "--version": "tower 1\n", "oil --version": "tower 1\n", "--loud --version": "tower 1\n",
	} {
		var stdout, stderr bytes.Buffer
		if code := tower.Run(strings.Fields(args), &stdout, &stderr); code != 0 || stdout.String() != want {
			t.Errorf("%s: exit code %d, %s\n%s", args, code, &stdout, &stderr)
		}
	}
}
