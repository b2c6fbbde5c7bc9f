// Command testserver is the MongoDB for the project's tests on a machine without a real one: FerretDB on SQLite, in one
// process, with nothing to install.
//
// FerretDB speaks MongoDB's protocol but does not give its guarantees: it executes a findAndModify or an update as a
// read followed by a write, and another connection's command may come between the two. (Eight clients claiming from 200
// documents with findOneAndUpdate made 917 claims.) In MongoDB each command on one document is atomic, and a store's
// claim protocol relies on that. So clients reach FerretDB only through a relay, which lets one command on a database
// through at a time. The relay also evaluates the store's one condition on the server's clock, which FerretDB does not
// support: see judgeNow. And it tells of a full disk by MongoDB's code: see tellSpace.
//
// It is a separate module, so that FerretDB's many dependencies stay out of Carillon's.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"syscall"

	"github.com/FerretDB/FerretDB/ferretdb"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:0", "`address` to listen on; port 0 takes a free one")
	data := flag.String("data", "", "`directory` of the data, made if missing (default: a temporary one, removed at exit)")
	flag.Parse()

	// Each command makes much garbage, but little data stays.
	debug.SetGCPercent(400)

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	err := run(ctx, *listen, *data, func(uri string) { fmt.Println(uri) })
	if err != nil {
		fmt.Fprintln(os.Stderr, "mongodb-testserver:", err)
		os.Exit(1)
	}
}

// run serves until ctx is done. It calls ready with the server's URI once clients may connect.
func run(ctx context.Context, listen, data string, ready func(uri string)) (err error) {
	// Only the relay can reach FerretDB, over a Unix socket, which also avoids a second port. The socket has a
	// directory of its own because its path must be short, and the path of data may be long.
	private, err := os.MkdirTemp("", "ferretdb-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(private)) }()

	if data == "" {
		data = filepath.Join(private, "data")
	}
	if data, err = filepath.Abs(data); err != nil {
		return err
	}
	if err := os.MkdirAll(data, 0o700); err != nil {
		return err
	}

	// Listen before FerretDB opens the data, so that a server that still runs there is noticed first.
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", listen)
	if err != nil {
		return err
	}
	defer listener.Close()

	socket := filepath.Join(private, "socket")
	db, err := ferretdb.New(&ferretdb.Config{
		Listener:  ferretdb.ListenerConfig{Unix: socket},
		Handler:   "sqlite",
		SQLiteURL: sqliteURL(data),
		Logger:    slog.New(errorsOnly{slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})}),
	})
	if err != nil {
		return err
	}

	// FerretDB outlives the relay, so that a command under way at the end is completed.
	dbCtx, stopDB := context.WithCancel(context.WithoutCancel(ctx))
	stopped := make(chan error, 1)
	go func() { stopped <- db.Run(dbCtx) }()

	// FerretDB names no hosts in its answer to hello, so a driver stays with the address it was given.
	ready("mongodb://" + listener.Addr().String() + "/")

	err = newRelay(socket, data).serve(ctx, listener)
	stopDB()
	return errors.Join(err, <-stopped)
}

// errorsOnly is a handler without attributes besides a record's own. FerretDB adds the arguments of every query to its
// logger, whatever the level, and a text handler would format them all.
type errorsOnly struct{ slog.Handler }

func (h errorsOnly) WithAttrs([]slog.Attr) slog.Handler { return h }

func (h errorsOnly) WithGroup(string) slog.Handler { return h }

// sqliteURL names the directory with one SQLite file per database. Without fsync a commit takes microseconds; the data
// survive this process, though not a crash of the machine.
func sqliteURL(dir string) string {
	u := url.URL{
		Scheme:   "file",
		Path:     dir + "/",
		RawQuery: url.Values{"_pragma": {"synchronous(off)"}}.Encode(),
	}
	return u.String()
}
