package postgres

import (
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/carillon-scheduler/carillon/store/storeurl"
)

const (
	defaultSchema = "carillon"
	// maxConns is the largest number of connections of a store, unless the URL says otherwise.
	maxConns = 10
	// connectTimeout bounds the time for connecting, unless the URL says otherwise.
	connectTimeout = 5 * time.Second
)

var schemaName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,62}$`)

// target is the database that a store URL names, with the configuration of its connections.
type target struct {
	url    storeurl.URL
	config *pgxpool.Config
	schema string
	// modeChosen reports whether the URL sets default_query_exec_mode.
	modeChosen bool
}

// parseURL parses a store URL. The error names the fault and shows no password.
func parseURL(rawURL string) (*target, error) {
	u, err := storeurl.Parse(rawURL, "postgres", "postgresql")
	if err != nil {
		return nil, err
	}
	options, err := u.Options()
	if err != nil {
		return nil, err
	}
	config, err := pgxpool.ParseConfig(rawURL)
	if err != nil {
		return nil, u.Faultf("%s", reason(err))
	}
	t := &target{url: u, config: config, schema: defaultSchema, modeChosen: options.Has("default_query_exec_mode")}
	// These two send parameters as text, with guessed types.
	mode := config.ConnConfig.DefaultQueryExecMode
	if mode == pgx.QueryExecModeExec || mode == pgx.QueryExecModeSimpleProtocol {
		return nil, u.Faultf("default_query_exec_mode must be cache_statement, cache_describe or describe_exec; " +
			"without it, the right one is found out")
	}
	if options.Has("schema") {
		t.schema = options.Get("schema")
		delete(config.ConnConfig.RuntimeParams, "schema")
	}
	if !schemaName.MatchString(t.schema) || strings.HasPrefix(t.schema, "pg_") {
		return nil, u.Faultf("%q can't be a schema's name: at most 63 letters, digits and underscores, "+
			"not beginning with a digit or pg_", t.schema)
	}
	if !options.Has("pool_max_conns") {
		config.MaxConns = maxConns
	}
	if _, ok := config.ConnConfig.RuntimeParams["application_name"]; !ok {
		config.ConnConfig.RuntimeParams["application_name"] = "carillon"
	}
	config.ConnConfig.RuntimeParams["client_encoding"] = "UTF8"
	if config.ConnConfig.ConnectTimeout == 0 {
		config.ConnConfig.ConnectTimeout = connectTimeout
	}
	// When a context ends, so does the statement's time at the server. The server's answer then shows the outcome.
	config.ConnConfig.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.DeadlineContextWatcherHandler{Conn: conn.Conn(), DeadlineDelay: grace}
	}
	if config.ConnConfig.ValidateConnect == nil && !options.Has("target_session_attrs") {
		config.ConnConfig.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	}
	return t, nil
}

// reason returns pgx's message about a URL, without the URL.
func reason(err error) string {
	text := err.Error()
	if _, after, ok := strings.Cut(text, "`: "); ok {
		return after
	}
	return text
}

// quote writes a name as an SQL identifier.
func quote(name string) string { return pgx.Identifier{name}.Sanitize() }
