package remote

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon/cmd/internal/cli"
)

func keyCommands() []cli.Command {
	ids := completing(path("keys"), "id", true)
	return []cli.Command{
		listing(
			cli.Command{Name: "key list", Help: "List the API keys of the running service.", Example: "carillon key list"},
			request{path: path("keys"), several: true},
			column{"ID", "id"}, column{"ROLE", "role"}, column{"TENANTS", "tenants"}, column{"KEY PREFIX", "keyPrefix"},
			column{"CREATED", "createdAt"}, column{"EXPIRES", "expiresAt"}, column{"LAST USED", "lastUsed"},
			column{"NOTE", "note"},
		),
		define(cli.Command{
			Name:    "key create",
			Help:    "Create an API key through the running service, and print it. It can't be shown again.",
			Example: `carillon key create --role=submitter --tenants=acme --note="the mailer of acme"`,
		}, createKey),
		define(cli.Command{
			Name: "key rotate", Arguments: "ID", Complete: ids,
			Help:    "Give an API key another secret, and print the new key. The one before is valid for the --overlap.",
			Example: "carillon key rotate 4iC0dQxYb7Zr --overlap=1d",
		}, func() parts {
			var overlap time.Duration
			return parts{
				declare: func(f *flag.FlagSet) {
					cli.Duration(f, &overlap, "overlap", 24*time.Hour,
						"`DURATION`: Time for which the replaced key stays valid, up to 30d.")
				},
				run: func(ctx context.Context, s *session, arguments []string) error {
					id, err := one(arguments, "one key by its id")
					if err != nil {
						return err
					}
					return s.shownOnce(ctx, request{
						method: http.MethodPost, path: path("keys", id, "rotate"), several: true, once: true,
						body: compact(document{"overlap": overlap.String()}),
					}, "key")
				},
			}
		}),
		simple(cli.Command{
			Name: "key revoke", Arguments: "ID", Help: "Revoke an API key.", Complete: ids,
			Example: "carillon key revoke 4iC0dQxYb7Zr",
		}, func(ctx context.Context, s *session, arguments []string) error {
			id, err := one(arguments, "one key by its id")
			if err != nil {
				return err
			}
			r := request{method: http.MethodDelete, path: path("keys", id), several: true}
			return s.gone(ctx, r, "key "+id+" is revoked")
		}),
	}
}

func createKey() parts {
	var given set
	return parts{
		declare: func(f *flag.FlagSet) {
			given.word(f, "role", "role", "`ROLE`: viewer, submitter, operator or admin.")
			f.Func("tenants", "`NAMES`: The key's tenants, with commas between them, or * for all.", func(text string) error {
				if text == "" {
					return errors.New("must not be empty; give * for all tenants")
				}
				return given.put("tenants", strings.Split(text, ","))
			})
			f.Func("key-prefix", "`PREFIX`: The required beginning of its jobs' keys.", nonEmpty(&given, "keyPrefix"))
			f.Func("expires-at", "`INSTANT`: End of its validity.", nonEmpty(&given, "expiresAt"))
			given.word(f, "note", "note", "`TEXT`: The key's purpose.")
		},
		run: func(ctx context.Context, s *session, _ []string) error {
			if given.members["role"] == nil || given.members["tenants"] == nil {
				return cli.Usagef("give --role and --tenants, such as --role=viewer --tenants=acme")
			}
			r := request{method: http.MethodPost, path: path("keys"), body: compact(given.members), several: true, once: true}
			return s.shownOnce(ctx, r, "key")
		},
	}
}

// nonEmpty returns the setter of an option that narrows a key: an empty value would make a key that may do more than
// was meant.
func nonEmpty(given *set, name string) func(string) error {
	return func(text string) error {
		if text == "" {
			return errors.New("must not be empty; leave it out for a key without that bound")
		}
		return given.put(name, text)
	}
}

// shownOnce makes a request whose answer has a secret, and prints it: alone on standard output, unless a form is given.
func (s *session) shownOnce(ctx context.Context, r request, member string) error {
	if s.form != "table" {
		return s.show(ctx, r)
	}
	a, err := s.do(ctx, r)
	if err != nil {
		return err
	}
	d, err := read[document](a.body)
	if err != nil {
		return err
	}
	fmt.Fprintf(s.in.Stderr, "%s: it is not shown again\n", text(either(d, "id", "name")))
	_, err = fmt.Fprintln(s.w, text(d[member]))
	return err
}

// gone deletes something, and says so on standard error.
func (s *session) gone(ctx context.Context, r request, done string) error {
	a, err := s.do(ctx, r)
	if err != nil && (!a.repeated || !isStatus(err, http.StatusNotFound)) {
		return err
	}
	fmt.Fprintln(s.in.Stderr, done)
	return nil
}

func secretCommands() []cli.Command {
	named := completing(path("secrets"), "name", false)
	signing := completing(path("signing-secrets"), "name", false)
	remove := func(group, what string) func(context.Context, *session, []string) error {
		return func(ctx context.Context, s *session, arguments []string) error {
			name, err := one(arguments, "one "+what)
			if err != nil {
				return err
			}
			return s.gone(ctx, request{method: http.MethodDelete, path: path(group, name)}, what+" "+name+" is deleted")
		}
	}
	return []cli.Command{
		listing(
			cli.Command{
				Name: "secret list", Help: "List the named secrets of the tenant, without their values.",
				Example: "carillon secret list",
			}, request{path: path("secrets")},
			column{"NAME", "name"}, column{"DESTINATIONS", "destinations"}, column{"CREATED", "createdAt"},
			column{"UPDATED", "updatedAt"},
		),
		define(cli.Command{
			Name: "secret put", Arguments: "NAME", Complete: named,
			Help: "Create or replace a secret that callbacks refer to. Its value is the content of a file, or of the standard " +
				"input.",
			Example: `carillon secret put billing-token -f token.txt --destination="http https://api.example.com"`,
		}, putSecret),
		simple(cli.Command{
			Name: "secret delete", Arguments: "NAME", Help: "Delete a named secret for good.", Complete: named,
			Example: "carillon secret delete billing-token",
		}, remove("secrets", "secret")),
		listing(
			cli.Command{
				Name: "signing-secret list", Help: "List the signing secrets of the tenant.",
				Example: "carillon signing-secret list",
			}, request{path: path("signing-secrets")},
			column{"NAME", "name"}, column{"CREATED", "createdAt"}, column{"UPDATED", "updatedAt"}, column{"VALID", "valid"},
		),
		define(cli.Command{
			Name: "signing-secret create", Arguments: "NAME",
			Help: "Create a secret that signs deliveries, and print it. The one called default signs those that name no " +
				"other.",
			Example: "carillon signing-secret create default",
		}, func() parts {
			var pair bool
			return parts{
				declare: func(f *flag.FlagSet) {
					f.BoolVar(&pair, "ed25519", false, "Sign with a key pair too, whose public key verifies.")
				},
				run: func(ctx context.Context, s *session, arguments []string) error {
					name, err := one(arguments, "the signing secret")
					if err != nil {
						return err
					}
					return s.shownOnce(ctx, request{
						method: http.MethodPost, path: path("signing-secrets"), once: true,
						body: compact(document{"name": name, "ed25519": pair}),
					}, "secret")
				},
			}
		}),
		define(cli.Command{
			Name: "signing-secret rotate", Arguments: "NAME", Complete: signing,
			Help:    "Make a new secret of the name, and print it. The one before is valid for the --overlap.",
			Example: "carillon signing-secret rotate default --overlap=7d",
		}, func() parts {
			var overlap time.Duration
			return parts{
				declare: func(f *flag.FlagSet) {
					cli.Duration(f, &overlap, "overlap", 24*time.Hour,
						"`DURATION`: Time for which the secret before stays valid, up to 90d.")
				},
				run: func(ctx context.Context, s *session, arguments []string) error {
					name, err := one(arguments, "one signing secret")
					if err != nil {
						return err
					}
					return s.shownOnce(ctx, request{
						method: http.MethodPost, path: path("signing-secrets", name, "rotate"), once: true,
						body: compact(document{"overlap": overlap.String()}),
					}, "secret")
				},
			}
		}),
		simple(cli.Command{
			Name: "signing-secret delete", Arguments: "NAME", Help: "Delete a signing secret for good.", Complete: signing,
			Example: "carillon signing-secret delete default",
		}, remove("signing-secrets", "signing secret")),
	}
}

func putSecret() parts {
	var file string
	var destinations []string
	return parts{
		declare: func(f *flag.FlagSet) {
			f.StringVar(&file, "f", "-", "`FILE`: The value, in a file of one line; - is the standard input.")
			f.Func("destination", "`NAME`: Where it may be sent, as the backlog names destinations; may be repeated. (anywhere)",
				func(text string) error {
					destinations = append(destinations, text)
					return nil
				})
		},
		run: func(ctx context.Context, s *session, arguments []string) error {
			name, err := one(arguments, "the secret")
			if err != nil {
				return err
			}
			value, err := s.raw(file)
			if err != nil {
				return err
			}
			body := document{"value": strings.TrimRight(string(value), "\r\n")}
			if destinations != nil {
				body["destinations"] = destinations
			}
			return s.show(ctx, request{method: http.MethodPut, path: path("secrets", name), body: compact(body)})
		},
	}
}

// shell commands

func shellCommands(program func() cli.Program) []cli.Command {
	return []cli.Command{
		{
			Name: "completion", Arguments: "SHELL", New: func() cli.Runner { return &printed{completion(program)} },
			Help: "Print the completion script of a shell: bash, zsh or fish. It completes keys of jobs by asking the " +
				"service.",
			Example: "source <(carillon completion bash)",
			Complete: func(_ context.Context, _ cli.Runner, arguments []string) []string {
				if len(arguments) == 1 {
					return cli.Shells
				}
				return nil
			},
		},
		{
			Name: "man", New: func() cli.Runner {
				return &printed{func(_ context.Context, in cli.Input) error {
					program().Man(in.Stdout)
					return nil
				}}
			},
			Help:    "Print the manual page.",
			Example: "carillon man | man -l -",
		},
		{
			Name: "__complete", Arguments: "WORDS", New: func() cli.Runner {
				return &printed{func(ctx context.Context, in cli.Input) error {
					for _, candidate := range program().Complete(ctx, in.Arguments) {
						if !strings.ContainsFunc(candidate, func(r rune) bool { return r < ' ' }) {
							fmt.Fprintln(in.Stdout, candidate)
						}
					}
					return nil
				}}
			},
		},
	}
}

// printed is a command without options.
type printed struct {
	run func(ctx context.Context, in cli.Input) error
}

// Flags declares no option.
func (*printed) Flags(*flag.FlagSet) {}

// Run prints.
func (p *printed) Run(ctx context.Context, in cli.Input) error { return p.run(ctx, in) }

func completion(program func() cli.Program) func(context.Context, cli.Input) error {
	return func(_ context.Context, in cli.Input) error {
		shell, err := one(in.Arguments, "one shell: "+strings.Join(cli.Shells, ", "))
		if err != nil {
			return err
		}
		script := program().Script(shell)
		if script == "" {
			return cli.Usagef("there is no completion for %q; the shells are %s", shell, strings.Join(cli.Shells, ", "))
		}
		_, err = io.WriteString(in.Stdout, script)
		return err
	}
}
