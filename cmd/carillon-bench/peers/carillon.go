package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// carillonPlace is the schema, or the prefix of the keys, of Carillon's store in this bench.
const carillonPlace = "carillon_bench_peers"

// carillonRound runs a round of Carillon's own bench on the same server.
func (c *comparison) carillonRound(ctx context.Context, mode, store string) (r Report, err error) {
	args := []string{mode, "--rounds=1", "--json", fmt.Sprintf("--payload=%d", c.payload)}
	switch mode {
	case "drain":
		args = append(args, fmt.Sprintf("--count=%d", c.count))
	case "steady":
		args = append(args, fmt.Sprintf("--rate=%g", c.rate), "--duration="+c.duration.String())
	default:
		args = append(args, fmt.Sprintf("--pending=%d", c.waiting), "--duration="+c.idle.String())
	}
	place, err := c.openPlace(ctx, store)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, place.close()) }()
	server, err := place.server(ctx)
	if err != nil {
		return r, err
	}
	args = append(args, "--store="+place.url)
	version, err := exec.CommandContext(ctx, c.carillon, "--version").Output()
	if err != nil {
		return r, fmt.Errorf("%s --version: %w", c.carillon, err)
	}
	if err := place.take(ctx, c.force); err != nil {
		return r, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Minute) // also after an interruption
		defer cancel()
		err = errors.Join(err, place.take(ctx, true)) // the bench deletes its jobs, but not the rest
	}()
	cmd := exec.CommandContext(ctx, c.carillon, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // so that it cleans up
	cmd.WaitDelay = time.Minute
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, c.out
	if err := cmd.Run(); err != nil {
		return r, fmt.Errorf("carillon-bench %s: %w", mode, err)
	}
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		return r, fmt.Errorf("the report of carillon-bench %s: %w", mode, err)
	}
	if len(r.Figures) == 0 {
		return r, fmt.Errorf("the report of carillon-bench %s has no figures", mode)
	}
	r.Subject, r.Settings, r.Version, r.Server = "carillon", byDefault, strings.TrimSpace(string(version)), server
	r.How = "All defaults of its bench; a process of its own, which serves the API too. Queries are calls to the store, " +
		"of one or more statements each."
	return r, nil
}

// place is the schema or the keys of Carillon's store.
type place struct {
	url    string
	server func(ctx context.Context) (string, error)
	// take makes sure that the place is empty: it returns errNotEmpty if it is not, or empties it if force is set.
	take  func(ctx context.Context, force bool) error
	close func() error
}

func (c *comparison) openPlace(ctx context.Context, store string) (*place, error) {
	if store == "postgres" {
		conn, err := pgx.Connect(ctx, c.postgres)
		if err != nil {
			return nil, fmt.Errorf("--postgres: %w", err)
		}
		return &place{
			url:    withOption(c.postgres, "schema="+carillonPlace),
			server: func(ctx context.Context) (string, error) { return versionOfPostgres(ctx, conn) },
			take:   func(ctx context.Context, force bool) error { return takeSchema(ctx, conn, carillonPlace, force) },
			close:  func() error { return conn.Close(context.WithoutCancel(ctx)) },
		}, nil
	}
	client, err := openRedis(c.redis)
	if err != nil {
		return nil, err
	}
	return &place{
		url:    withOption(c.redis, "prefix="+carillonPlace),
		server: func(ctx context.Context) (string, error) { return versionOfRedis(ctx, client) },
		take:   func(ctx context.Context, force bool) error { return takeKeys(ctx, client, carillonPlace+":*", force) },
		close:  client.Close,
	}, nil
}

// withOption adds an option to a URL.
func withOption(rawURL, option string) string {
	if strings.Contains(rawURL, "?") {
		return rawURL + "&" + option
	}
	return rawURL + "?" + option
}
