package webhook

import (
	"errors"
	"flag"
	"fmt"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/callbacks/webhook/guard"
)

// Flags declares the options that users set.
func (o *Options) Flags(f *flag.FlagSet) {
	f.Func("webhook-networks",
		"`NETWORKS`: The addresses that callbacks of type http may be sent to: public (the Internet), private (private "+
			"networks, but not this machine) or any (all but link-local ones and metadata services). (any if --listen is on "+
			"loopback, else public)",
		func(s string) error {
			switch n := guard.Networks(s); n {
			case guard.Public, guard.Private, guard.Any:
				o.Guard.Networks = n
				return nil
			}
			return fmt.Errorf("must be one of public, private, any, not %q", s)
		})
	f.Var(&o.Guard.Allow, "webhook-allow",
		"`NETWORKS`: Addresses and networks, such as 10.1.2.3,10.2.0.0/16, that may be called besides those. The address of "+
			"a metadata service only by itself.")
	f.Var(&o.Guard.Deny, "webhook-deny",
		"`NETWORKS`: Addresses and networks that must not be called. This overrides all other options.")
	f.Var(&o.Guard.Ports, "webhook-ports", "`PORTS`: The ports that may be called, such as 443,8000-8999. (all)")
	f.Func("webhook-proxy",
		"`MODE`: The use of a proxy in the environment (HTTPS_PROXY, HTTP_PROXY) if these options restrict addresses: "+
			"the proxy connects to receivers then, and they are not checked here. One of refuse (to start), ignore (connect "+
			"directly) and trust (use it; it must restrict them itself). (refuse)",
		func(s string) error {
			switch m := ProxyMode(s); m {
			case ProxyRefuse, ProxyIgnore, ProxyTrust:
				o.Proxy = m
				return nil
			}
			return fmt.Errorf("must be one of refuse, ignore, trust, not %q", s)
		})
}

// Open makes the sender of a replica. An error names the wrong option.
func (o *Options) Open(r callbacks.Replica) (callbacks.Sender, error) {
	o.IdleConns, o.UserAgent = max(r.Concurrency, 64), r.UserAgent
	if o.Guard.Networks == "" && r.Exposed {
		o.Guard.Networks = guard.Public
	}
	if o.Guard.Restricts() && o.Proxy != ProxyIgnore && o.Proxy != ProxyTrust && environmentHasProxy() {
		return nil, errors.New("--webhook-proxy: the environment names a proxy, which would connect to receivers for this " +
			"program, so that addresses could not be checked. Set it to ignore, or to trust if the proxy itself " +
			"restricts addresses; or set --webhook-networks=any")
	}
	return New(*o), nil
}
