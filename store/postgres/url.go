package postgres

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	defaultSchema = "carillon"
	// maxConns is how many connections a store has at most, unless the URL says otherwise.
	maxConns = 10
	// connectTimeout is how long connecting may take, unless the URL says otherwise.
	connectTimeout = 5 * time.Second
)

var schemaName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,62}$`)

// target is what a store URL names.
type target struct {
	parts  urlParts
	config *pgxpool.Config
	schema string
	// modeChosen is that it says how to send statements.
	modeChosen bool
}

// parseURL reads a store URL. The error says what is wrong and shows no password.
func parseURL(rawURL string) (*target, error) {
	parts, ok := splitURL(rawURL)
	if !ok {
		return nil, errors.New("the store URL must begin with postgres:// or postgresql://")
	}
	bad := func(format string, args ...any) error {
		return fmt.Errorf("store URL %s: %w", parts, fmt.Errorf(format, args...))
	}
	// Checked here because an error about what comes after could quote a part of a password that has such characters.
	for _, s := range []string{parts.user, parts.password} {
		if _, err := url.PathUnescape(s); err != nil || strings.ContainsAny(s, ":/?#[]@") {
			return nil, bad("its user and password must be percent-encoded, such as %%40 for @")
		}
	}
	options, err := url.ParseQuery(parts.query)
	if err != nil {
		return nil, bad("its options can't be read: they must be percent-encoded, as in ?name=value&name=value")
	}
	config, err := pgxpool.ParseConfig(rawURL)
	if err != nil {
		return nil, bad("%s", parts.hide(reason(err)))
	}
	t := &target{parts: parts, config: config, schema: defaultSchema, modeChosen: options.Has("default_query_exec_mode")}
	// These write parameters as text, by types that they guess.
	if mode := config.ConnConfig.DefaultQueryExecMode; mode == pgx.QueryExecModeExec || mode == pgx.QueryExecModeSimpleProtocol {
		return nil, bad("default_query_exec_mode must be cache_statement, cache_describe or describe_exec; without it, the right one is found out")
	}
	if options.Has("schema") {
		t.schema = options.Get("schema")
		delete(config.ConnConfig.RuntimeParams, "schema")
	}
	if !schemaName.MatchString(t.schema) || strings.HasPrefix(t.schema, "pg_") {
		return nil, bad("%q can't be a schema's name: at most 63 letters, digits and underscores, not beginning with a digit or pg_", t.schema)
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
	// When a context ends, so does the statement's time at the server, whose answer then tells what was done.
	config.ConnConfig.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.DeadlineContextWatcherHandler{Conn: conn.Conn(), DeadlineDelay: grace}
	}
	if config.ConnConfig.ValidateConnect == nil && !options.Has("target_session_attrs") {
		config.ConnConfig.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	}
	return t, nil
}

// reason is what pgx says of a URL, without the URL.
func reason(err error) string {
	text := err.Error()
	if _, after, ok := strings.Cut(text, "`: "); ok {
		return after
	}
	return text
}

// urlParts are the parts of a URL that are looked at here; pgx knows the rest.
type urlParts struct {
	scheme, user, password, hosts, database, query string
}

func splitURL(rawURL string) (p urlParts, ok bool) {
	scheme, rest, _ := strings.Cut(rawURL, "://")
	if p.scheme = scheme; scheme != "postgres" && scheme != "postgresql" {
		return p, false
	}
	// A password with "/", "?" or "@" in it is a mistake, but one that must be found, so the last "@" ends it. None of
	// these can be in the hosts, and an "@" in an option must be encoded.
	if at := strings.LastIndex(rest, "@"); at >= 0 {
		p.user, p.password, _ = strings.Cut(rest[:at], ":")
		rest = rest[at+1:]
	}
	rest, p.query, _ = strings.Cut(rest, "?")
	p.hosts, p.database, _ = strings.Cut(rest, "/")
	return p, true
}

// hide removes the query's secrets from an error's text. Of the password, pgx's errors hold nothing.
func (p urlParts) hide(text string) string {
	for option := range strings.SplitSeq(p.query, "&") {
		name, value, _ := strings.Cut(option, "=")
		if name, err := url.QueryUnescape(name); err != nil || !strings.Contains(strings.ToLower(name), "password") || value == "" {
			continue
		}
		text = strings.ReplaceAll(text, value, "***")
		if plain, err := url.QueryUnescape(value); err == nil {
			text = strings.ReplaceAll(text, plain, "***")
		}
	}
	return text
}

// String is the URL without its password and options, for errors.
func (p urlParts) String() string {
	user := p.user
	if strings.ContainsAny(user, "/?") { // some other "@" was taken for the end of the user
		return p.scheme + "://…"
	}
	if p.password != "" {
		user += ":***"
	}
	if user != "" {
		user += "@"
	}
	return strings.TrimSuffix(p.scheme+"://"+user+p.hosts+"/"+p.database, "/")
}

// quote writes a name as SQL does.
func quote(name string) string { return pgx.Identifier{name}.Sanitize() }
