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

	"github.com/carillon-scheduler/carillon/store/storeurl"
)

// maxShards bounds the number of shards: each costs a little of every query that asks them all.
const maxShards = 1024

// patience is the time limit of a server, unless the URL says otherwise. A server that syncs each write can be slow at
// times.
const patience = 5 * time.Second

// address is the parsed store URL.
type address struct {
	url     storeurl.URL
	hosts   []string // each with its port
	cluster bool
	shards  int // zero: not given
	prefix  string
	options url.Values // options of the client library
}

// defaultShards returns the number of shards of a new store if its URL does not set it. One server runs one script at a
// time, however many shards it has.
func (t *address) defaultShards() int {
	if t.cluster {
		return 16
	}
	return 1
}

var validPrefix = regexp.MustCompile(`^[A-Za-z0-9._:-]{1,64}$`)

// parseURL parses a store URL and makes the client, which does not connect yet. The error names the fault and shows no
// password.
func parseURL(rawURL string) (*address, redis.UniversalClient, error) {
	t, err := readURL(rawURL)
	if err != nil {
		return nil, nil, err
	}
	client, err := t.client()
	if err != nil {
		return nil, nil, t.url.Fault(err)
	}
	return t, client, nil
}

func readURL(rawURL string) (t *address, err error) {
	t = &address{}
	if t.url, err = storeurl.Parse(rawURL, "redis", "rediss"); err != nil {
		return nil, err
	}
	t.hosts = t.url.Hosts()
	for i, host := range t.hosts {
		if t.hosts[i], err = withPort(host); err != nil {
			return nil, t.url.Fault(err)
		}
	}
	if t.options, err = t.url.Options(); err != nil {
		return nil, err
	}
	if err := t.ownOptions(); err != nil {
		return nil, t.url.Fault(err)
	}
	switch {
	case len(t.hosts) > 1 && !t.cluster:
		return nil, t.url.Faultf("several hosts are the nodes of a cluster: add the option cluster=true")
	case t.cluster && strings.Trim(t.url.Path(), "0") != "":
		return nil, t.url.Faultf("a cluster has no database but 0, not %q", t.url.Path())
	}
	return t, nil
}

// withPort adds the default port to a host without one.
func withPort(host string) (string, error) {
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

// ownOptions parses and removes Carillon's own options.
func (t *address) ownOptions() (err error) {
	take := func(name string) string {
		value := t.options.Get(name)
		t.options.Del(name)
		return value
	}
	switch value := take("cluster"); value {
	case "", "false":
	case "true":
		t.cluster = true
	default:
		return fmt.Errorf("cluster must be true or false, not %q", value)
	}
	if value := take("shards"); value != "" {
		if t.shards, err = strconv.Atoi(value); err != nil || t.shards < 1 || t.shards > maxShards {
			return fmt.Errorf("shards must be a number from 1 to %d, not %q", maxShards, value)
		}
	}
	if t.prefix = take("prefix"); t.prefix == "" {
		t.prefix = "carillon"
	}
	if !validPrefix.MatchString(t.prefix) {
		return fmt.Errorf("prefix must be up to 64 letters, digits and . _ : -, not %q", t.prefix)
	}
	return nil
}

// client makes the client, which does not connect yet. The library gets a URL without user and password, so that it
// can't show them.
//
// The client repeats nothing, see [once]. All reads go to masters, since a replica may lag. The end of a context is
// respected.
func (t *address) client() (redis.UniversalClient, error) {
	bare := url.URL{Scheme: t.url.Scheme(), Host: t.hosts[0], Path: t.url.Path(), RawQuery: t.options.Encode()}
	notifications := &maintnotifications.Config{Mode: maintnotifications.ModeDisabled} // only Redis Cloud sends them
	if t.cluster {
		bare.Path = ""
		o, err := redis.ParseClusterURL(bare.String())
		if err != nil {
			return nil, err
		}
		o.Addrs, o.Username, o.Password = t.hosts, t.url.User(), t.url.Password()
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
	o.Username, o.Password = t.url.User(), t.url.Password()
	o.MaxRetries, o.ContextTimeoutEnabled = -1, true
	o.ReadTimeout, o.WriteTimeout = cmp.Or(o.ReadTimeout, patience), cmp.Or(o.WriteTimeout, patience)
	o.DialerRetries = 1
	o.MaintNotificationsConfig = notifications
	return redis.NewClient(o), nil
}
