package redis

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// maxShards bounds the number of shards: each costs a little of every query that asks them all.
const maxShards = 1024

// patience is how long a server may take unless the URL says otherwise. One that syncs each write can be slow at times.
const patience = 5 * time.Second

// urlParts are the parts of a store URL.
type urlParts struct {
	scheme, user, password string
	hosts                  []string
	database               string
	cluster                bool
	shards                 int // zero: not given
	prefix                 string
	options                url.Values // those of the client library
}

// defaultShards is how many shards a new store gets if its URL does not say. One server runs one script at a time,
// however they are spread.
func (p *urlParts) defaultShards() int {
	if p.cluster {
		return 16
	}
	return 1
}

// String is the URL without its password and options, for errors.
func (p urlParts) String() string {
	user := p.user
	if p.password != "" {
		user += ":***"
	}
	if user != "" {
		user += "@"
	}
	return strings.TrimSuffix(p.scheme+"://"+user+strings.Join(p.hosts, ",")+"/"+p.database, "/")
}

var validPrefix = regexp.MustCompile(`^[A-Za-z0-9._:-]{1,64}$`)

// parseURL reads a store URL and makes the client, which does not connect yet. The error says what is wrong and shows
// no password.
func parseURL(rawURL string) (urlParts, redis.UniversalClient, error) {
	p, err := splitURL(rawURL)
	if err != nil {
		return p, nil, err
	}
	client, err := p.client()
	if err != nil {
		return p, nil, fmt.Errorf("store URL %s: %w", p, err)
	}
	return p, client, nil
}

func splitURL(rawURL string) (p urlParts, err error) {
	scheme, rest, _ := strings.Cut(rawURL, "://")
	if p.scheme = scheme; scheme != "redis" && scheme != "rediss" {
		return p, errors.New("the store URL must begin with redis:// or rediss://")
	}
	// A password with "/", "?" or "@" in it is a mistake, but one that must be found, so the last "@" ends it.
	if at := strings.LastIndex(rest, "@"); at >= 0 {
		p.user, p.password, _ = strings.Cut(rest[:at], ":")
		rest = rest[at+1:]
	}
	for _, s := range []*string{&p.user, &p.password} {
		plain, err := url.PathUnescape(*s)
		if err != nil || strings.ContainsAny(*s, ":/?#[]@") {
			return p, errors.New("user and password of the store URL must be percent-encoded, such as %40 for @")
		}
		*s = plain
	}
	rest, query, _ := strings.Cut(rest, "?")
	hosts, database, _ := strings.Cut(rest, "/")
	p.hosts, p.database = strings.Split(hosts, ","), database

	bad := func(format string, args ...any) (urlParts, error) {
		return p, fmt.Errorf("store URL %s: %w", p, fmt.Errorf(format, args...))
	}
	for i, host := range p.hosts {
		if p.hosts[i], err = address(host); err != nil {
			return bad("%w", err)
		}
	}
	if p.options, err = url.ParseQuery(query); err != nil {
		return bad("its options: %w", err)
	}
	if err := p.ownOptions(); err != nil {
		return bad("%w", err)
	}
	switch {
	case len(p.hosts) > 1 && !p.cluster:
		return bad("several hosts are the nodes of a cluster: add the option cluster=true")
	case p.cluster && strings.Trim(p.database, "0") != "":
		return bad("a cluster has no database but 0, not %q", p.database)
	}
	return p, nil
}

// address is a host with its port.
func address(host string) (string, error) {
	if !strings.Contains(strings.TrimPrefix(host, "["), ":") || strings.HasSuffix(host, "]") {
		host += ":6379"
	}
	name, port, err := net.SplitHostPort(host)
	if err != nil {
		return host, err
	}
	if name == "" {
		return host, errors.New("must name a host, as in redis://localhost:6379")
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return host, fmt.Errorf("the port %q must be a number up to 65535", port)
	}
	return host, nil
}

// ownOptions takes the options that are Carillon's own.
func (p *urlParts) ownOptions() (err error) {
	take := func(name string) string {
		value := p.options.Get(name)
		p.options.Del(name)
		return value
	}
	switch value := take("cluster"); value {
	case "", "false":
	case "true":
		p.cluster = true
	default:
		return fmt.Errorf("cluster must be true or false, not %q", value)
	}
	if value := take("shards"); value != "" {
		if p.shards, err = strconv.Atoi(value); err != nil || p.shards < 1 || p.shards > maxShards {
			return fmt.Errorf("shards must be a number from 1 to %d, not %q", maxShards, value)
		}
	}
	if p.prefix = take("prefix"); p.prefix == "" {
		p.prefix = "carillon"
	}
	if !validPrefix.MatchString(p.prefix) {
		return fmt.Errorf("prefix must be up to 64 letters, digits and . _ : -, not %q", p.prefix)
	}
	return nil
}

// client makes the client, which does not connect yet. The library gets a URL without user and password, so that it
// can't show them.
//
// Nothing is tried a second time, see [once]; all reads go to masters, since a replica may lag; and a context's end is
// heeded.
func (p *urlParts) client() (redis.UniversalClient, error) {
	bare := url.URL{Scheme: p.scheme, Host: p.hosts[0], Path: p.database, RawQuery: p.options.Encode()}
	notifications := &maintnotifications.Config{Mode: maintnotifications.ModeDisabled} // only Redis' own cloud has them
	if p.cluster {
		bare.Path = ""
		o, err := redis.ParseClusterURL(bare.String())
		if err != nil {
			return nil, err
		}
		o.Addrs, o.Username, o.Password = p.hosts, p.user, p.password
		o.MaxRetries, o.ContextTimeoutEnabled = -1, true
		o.ReadTimeout, o.WriteTimeout = cmp.Or(o.ReadTimeout, patience), cmp.Or(o.WriteTimeout, patience)
		o.DialerRetries = 1
		o.ReadOnly, o.RouteByLatency, o.RouteRandomly, o.DisableRoutingPolicies = false, false, false, true
		o.MaintNotificationsConfig = notifications
		return redis.NewClusterClient(o), nil
	}
	o, err := redis.ParseURL(bare.String())
	if err != nil {
		return nil, err
	}
	o.Username, o.Password = p.user, p.password
	o.MaxRetries, o.ContextTimeoutEnabled = -1, true
	o.ReadTimeout, o.WriteTimeout = cmp.Or(o.ReadTimeout, patience), cmp.Or(o.WriteTimeout, patience)
	o.DialerRetries = 1
	o.MaintNotificationsConfig = notifications
	return redis.NewClient(o), nil
}
