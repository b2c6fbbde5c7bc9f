package webhook_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/callbacks/webhook"
	"github.com/carillon-scheduler/carillon/callbacks/webhook/guard"
	"github.com/carillon-scheduler/carillon/job"
)

// zone has the answers of a DNS server of the test's own: the addresses of each name, and for some names other ones
// with each query.
type zone map[string][]string

// serve starts the server, and answers a resolver that asks it alone.
func (z zone) serve(t *testing.T) *net.Resolver {
	t.Helper()
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	go func() {
		asked := make(map[string]int)
		buffer := make([]byte, 1500)
		for {
			n, from, err := server.ReadFrom(buffer)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(buffer[:n]) != nil || len(m.Questions) != 1 {
				continue
			}
			m.Response, m.Authoritative, m.Additionals = true, true, nil
			q := m.Questions[0]
			name := strings.ToLower(strings.TrimSuffix(q.Name.String(), "."))
			addresses, known := z[name]
			if strings.HasPrefix(name, "turns.") && len(addresses) > 0 && q.Type == dnsmessage.TypeA {
				addresses = addresses[asked[name]%len(addresses):][:1]
				asked[name]++
			}
			if !known {
				m.RCode = dnsmessage.RCodeNameError
			}
			for _, a := range addresses {
				resource := dnsmessage.Resource{Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class}}
				if strings.HasSuffix(a, ".") {
					// An alias, with the address of its target.
					resource.Body = &dnsmessage.CNAMEResource{CNAME: dnsmessage.MustNewName(a)}
					m.Answers = append(m.Answers, resource)
					resource.Header.Name, a = dnsmessage.MustNewName(a), z[strings.TrimSuffix(a, ".")][0]
				}
				switch ip := netip.MustParseAddr(a); {
				case ip.Is4() && q.Type == dnsmessage.TypeA:
					resource.Body = &dnsmessage.AResource{A: ip.As4()}
				case ip.Is6() && q.Type == dnsmessage.TypeAAAA:
					resource.Body = &dnsmessage.AAAAResource{AAAA: ip.As16()}
				default:
					continue
				}
				m.Answers = append(m.Answers, resource)
			}
			if answer, err := m.Pack(); err == nil {
				_, _ = server.WriteTo(answer, from)
			}
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", server.LocalAddr().String())
	}}
}

// receiverAt starts a receiver at an address of this machine, and counts its requests. Its port is that of all of a test.
func receiverAt(t *testing.T, address, port string, handler http.HandlerFunc) (at string, requests *atomic.Int32) {
	t.Helper()
	listener, err := net.Listen("tcp", net.JoinHostPort(address, port))
	if err != nil {
		t.Fatal(err)
	}
	requests = new(atomic.Int32)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		requests.Add(1)
		w.Header().Set("Connection", "close") // the next request looks the name up again
		if handler != nil {
			handler(w, req)
		}
	})}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	_, at, _ = net.SplitHostPort(listener.Addr().String())
	return at, requests
}

// hostile are hosts that stand for addresses which must not be called from a service that is open to others. Those that
// are literal addresses are refused when a job is submitted, the others when they are dialled.
var hostile = map[string]bool{ // whether it is a literal address
	// This machine, in all spellings.
	"127.0.0.1": true, "127.0.0.1.": true, "127.1": true, "127.0.1": true, "127.255.255.254": true, "2130706433": true,
	"0x7f000001": true, "0x7f.0.0.1": true, "0X7F.1": true, "0x7f.0x0.0x0.0x1": true, "017700000001": true, "0177.0.0.1": true,
	"0177.0.0.01": true, "00000177.1": true, "127.0x1": true, "0": true, "0.0.0.0": true, "0x0": true, "000.0.0.0": true,
	"[::1]": true, "[::]": true, "[0:0:0:0:0:0:0:1]": true, "[::ffff:127.0.0.1]": true, "[::ffff:7f00:1]": true,
	"[::127.0.0.1]": true, "[::7f00:1]": true, "[0000:0000:0000:0000:0000:ffff:7f00:0001]": true, "[::ffff:0:127.0.0.1]": true,
	"[64:ff9b::127.0.0.1]": true, "[64:ff9b::7f00:1]": true, "[64:ff9b:1::7f00:1]": true, "[2002:7f00:1::]": true,
	"[2001:0:7f00:1::80ff:fffe]": true, "[2606:2800::5efe:7f00:1]": true, "[::1%25lo]": true,
	"localhost": true, "LocalHost": true, "localhost.": true, "any.localhost": true,
	"１２７.０.０.１": true, "①②⑦.⓪.⓪.①": true, "127。0。0。1": true, "%E2%91%A0%E2%91%A1%E2%91%A6.0.0.1": true, "ⓛⓞⓒⓐⓛⓗⓞⓢⓣ": true,

	// Private networks.
	"10.0.0.1": true, "10.1": true, "0xa000001": true, "167772161": true, "172.16.0.1": true, "172.31.255.255": true, "192.168.0.1": true,
	"192.168.257": true, "100.64.0.1": true, "[fc00::1]": true, "[fd12:3456:789a::1]": true, "[::ffff:10.0.0.1]": true,
	"[64:ff9b::10.0.0.1]": true, "[2002:a00:1::1]": true, "[fec0::1]": true,

	// Metadata services, and other link-local addresses.
	"169.254.169.254": true, "0xa9fea9fe": true, "2852039166": true, "169.254.43518": true, "0251.0376.0251.0376": true,
	"[::ffff:169.254.169.254]": true, "[fd00:ec2::254]": true, "[fe80::1]": true, "[fe80::a9fe:a9fe%25eth0]": true, "169.254.170.2": true,
	"100.100.100.200": true, "168.63.129.16": true, "192.0.0.192": true, "[64:ff9b::a9fe:a9fe]": true, "[2002:a9fe:a9fe::]": true,

	// Addresses without hosts.
	"192.0.2.1": true, "198.18.0.1": true, "203.0.113.1": true, "224.0.0.1": true, "240.0.0.1": true, "255.255.255.255": true,
	"[ff02::1]": true, "[2001:db8::1]": true, "[100::1]": true, "[4000::1]": true,

	// Names, which must be looked up.
	"loopback.test": false, "Loopback.Test.": false, "six.test": false, "mapped.test": false, "nat64.test": false, "zero.test": false,
	"unspecified.test": false, "private.test": false, "unique.test": false, "metadata.test": false, "imds6.test": false, "link.test": false,
	"alias.test": false, "both.test": false, "127.0.0.1.test": false, "sixtofour.test": false, "azure.test": false,
	"0x7f.0.0.256": false,
}

var names = zone{
	"loopback.test": {"127.0.0.1"}, "six.test": {"::1"}, "mapped.test": {"::ffff:127.0.0.1"}, "nat64.test": {"64:ff9b::7f00:1"},
	"zero.test": {"0.0.0.0"}, "unspecified.test": {"::"}, "private.test": {"10.0.0.1", "192.168.0.1"}, "unique.test": {"fd00::1"},
	"metadata.test": {"169.254.169.254"}, "imds6.test": {"fd00:ec2::254"}, "link.test": {"fe80::1"}, "alias.test": {"loopback.test."},
	"both.test": {"127.0.0.1", "::1"}, "127.0.0.1.test": {"127.0.0.1"}, "sixtofour.test": {"2002:7f00:1::"}, "azure.test": {"168.63.129.16"},
	"0x7f.0.0.256": {"127.0.0.1"},
	"turns.test":   {"127.0.0.2", "127.0.0.1"},
	"either.test":  {"127.0.0.1", "127.0.0.2"},
	"closed.test":  {"127.0.0.1", "127.0.0.3"},
}

// A service that is open to others reaches nothing within, however a job spells where that is.
func TestHostileAddresses(t *testing.T) {
	if len(hostile) < 60 {
		t.Fatalf("only %d spellings", len(hostile))
	}
	port, within := receiverAt(t, "", "0", nil) // at all addresses of this machine
	resolver := names.serve(t)
	sender := newSender(t, webhook.Options{Guard: guard.Guard{Networks: guard.Public}, Resolver: resolver})
	open := newSender(t, webhook.Options{Resolver: resolver})
	for host, literal := range hostile {
		t.Run(host, func(t *testing.T) {
			hook := data("url", "http://"+host+":"+port+"/")
			if err := open.Validate(hook); err != nil && !strings.Contains(err.Error(), "must not be called") {
				t.Fatalf("it is no URL at all, so the test shows nothing: %v", err)
			}
			err := sender.Validate(hook)
			invalid, refused := errors.AsType[*job.Invalid](err)
			if refused != literal || refused && invalid.Fields[0].Pointer != "/url" {
				t.Errorf("when it is submitted: %v", err)
			}
			err = sender.Send(t.Context(), delivery(hook))
			failure, ok := errors.AsType[*callbacks.Failure](err)
			if !ok || !failure.Permanent || !failure.Refused || !strings.Contains(err.Error(), "--webhook-") {
				t.Errorf("when it is sent: %v", err)
			}
			if names := err.Error(); !literal && (strings.Contains(names, "10.0.0.1:") || strings.Contains(names, "fd00")) {
				t.Errorf("the error tells what the name stands for: %v", err)
			}
		})
	}
	if n := within.Load(); n > 0 {
		t.Errorf("%d requests came", n)
	}
	// Without the guard many of them are reached, so the receiver is where it should not be.
	for _, host := range []string{"127.0.0.1", "0.0.0.0", "[::ffff:7f00:1]", "１２７.０.０.１", "loopback.test", "mapped.test", "alias.test", "0x7f.0.0.256"} {
		before := within.Load()
		if err := open.Send(t.Context(), delivery(data("url", "http://"+host+":"+port+"/"))); err != nil || within.Load() == before {
			t.Errorf("%s is not reached where anything may be: %v", host, err)
		}
	}
}

// Errors of look-ups don't contain the address of the DNS server.
func TestLookUpErrors(t *testing.T) {
	resolver := &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		return nil, errors.New("dial udp 10.9.8.7:53: connection refused")
	}}
	sender := newSender(t, webhook.Options{Resolver: resolver})
	err := sender.Send(t.Context(), delivery(data("url", "http://receiver.test/")))
	if err == nil || !strings.Contains(err.Error(), "lookup receiver.test: the look-up failed") || strings.Contains(err.Error(), "10.9.8.7") {
		t.Error(err)
	}
	if failure, _ := errors.AsType[*callbacks.Failure](err); failure != nil {
		t.Errorf("it is a plain failure, not %#v", failure)
	}
}

// Errors of connections don't contain this machine's address.
func TestConnectionErrors(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		hijacked, _, err := w.(http.Hijacker).Hijack()
		if err == nil {
			_ = hijacked.(*net.TCPConn).SetLinger(0) // the client gets a reset
			_ = hijacked.Close()
		}
	}))
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://")
	err := newSender(t, webhook.Options{}).Send(t.Context(), delivery(data("url", server.URL)))
	if err == nil || !strings.Contains(err.Error(), "read tcp "+host) || strings.Contains(err.Error(), "->") {
		t.Error(err)
	}
}

// This machine's own addresses are read when one is dialled.
func TestOwnAddresses(t *testing.T) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		own := netip.MustParsePrefix(a.String()).Addr()
		if own.IsLoopback() || own.IsLinkLocalUnicast() {
			continue
		}
		networks := guard.Public
		if !guard.IsPublic(own) {
			networks = guard.Private
		}
		port, within := receiverAt(t, own.String(), "0", nil)
		hook := data("url", "http://"+net.JoinHostPort(own.String(), port))
		err := newSender(t, webhook.Options{Guard: guard.Guard{Networks: networks}}).Send(t.Context(), delivery(hook))
		if failure, _ := errors.AsType[*callbacks.Failure](err); failure == nil || !failure.Refused || within.Load() > 0 {
			t.Errorf("%s with %q: %v", own, networks, err)
		}
		if err := newSender(t, webhook.Options{}).Send(t.Context(), delivery(hook)); err != nil || within.Load() != 1 {
			t.Errorf("%s where anything may be called: %v", own, err)
		}
	}
}

// A receiver whose name stands for an allowed address and another one in turns gets nothing at the other. Redirects are
// not followed.
func TestRebinding(t *testing.T) {
	port, allowed := receiverAt(t, "127.0.0.2", "0", nil)
	_, within := receiverAt(t, "127.0.0.1", port, nil)
	options := webhook.Options{Guard: guard.Guard{Networks: guard.Public}, Resolver: names.serve(t)}
	if err := options.Guard.Allow.Set("127.0.0.2,127.0.0.3"); err != nil {
		t.Fatal(err)
	}
	sender := newSender(t, options)
	send := func(host, path string) error {
		return sender.Send(t.Context(), delivery(data("url", "http://"+host+":"+port+path)))
	}
	delivered, refused := 0, 0
	for range 20 {
		err := send("turns.test", "/")
		failure, _ := errors.AsType[*callbacks.Failure](err)
		switch {
		case err == nil:
			delivered++
		case failure != nil && failure.Refused:
			refused++
		default:
			t.Error(err)
		}
	}
	if delivered != 10 || refused != 10 {
		t.Errorf("%d were delivered and %d refused, want 10 each", delivered, refused)
	}
	for range 10 { // of both addresses, the allowed one is taken
		if err := send("either.test", "/"); err != nil {
			t.Error(err)
		}
	}
	// The allowed one is down, which may pass.
	err := send("closed.test", "/")
	if failure, _ := errors.AsType[*callbacks.Failure](err); err == nil || failure != nil {
		t.Errorf("an allowed address that is down: %v", err)
	}
	if strings.Contains(err.Error(), "127.0.0.1") {
		t.Errorf("the error tells the other address: %v", err)
	}
	err = send("unknown.test", "/")
	if failure, _ := errors.AsType[*callbacks.Failure](err); err == nil || failure != nil || strings.Contains(err.Error(), "127.0.0.1:") {
		t.Errorf("a name that there is not: %v", err)
	}
	if n := allowed.Load(); n != 20 {
		t.Errorf("%d of 20 came to the allowed address", n)
	}
	if n := within.Load(); n != 0 {
		t.Errorf("%d came to the other", n)
	}
}

func TestRedirectsStayOutside(t *testing.T) {
	port, within := receiverAt(t, "127.0.0.1", "0", nil)
	_, allowed := receiverAt(t, "127.0.0.2", port, func(w http.ResponseWriter, req *http.Request) {
		http.Redirect(w, req, "http://127.0.0.1:"+port+"/", http.StatusTemporaryRedirect)
	})
	options := webhook.Options{Guard: guard.Guard{Networks: guard.Public}}
	if err := options.Guard.Allow.Set("127.0.0.2"); err != nil {
		t.Fatal(err)
	}
	err := newSender(t, options).Send(t.Context(), delivery(data("url", "http://127.0.0.2:"+port+"/")))
	if err == nil || !strings.Contains(err.Error(), "redirects are not followed") || within.Load() > 0 || allowed.Load() != 1 {
		t.Errorf("%v; %d came within", err, within.Load())
	}
}

// Answers of receivers within the operator's networks are not shown, unless any address may be called.
func TestAnswersFromWithin(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = io.WriteString(w, "salaries: 1234")
	}))
	defer server.Close()
	for networks, shown := range map[guard.Networks]bool{guard.Any: true, "": true, guard.Public: false, guard.Private: false} {
		options := webhook.Options{Guard: guard.Guard{Networks: networks}}
		if err := options.Guard.Allow.Set("127.0.0.0/8"); err != nil {
			t.Fatal(err)
		}
		err := newSender(t, options).Send(t.Context(), delivery(data("url", server.URL)))
		if err == nil || !strings.Contains(err.Error(), "500") || strings.Contains(err.Error(), "salaries") != shown {
			t.Errorf("with %q: %v", networks, err)
		}
	}
}

// opened makes a sender of a replica's options.
func opened(t *testing.T, exposed bool, args ...string) (callbacks.Sender, error) {
	t.Helper()
	var o webhook.Options
	flags := flag.NewFlagSet("", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	o.Flags(flags)
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	sender, err := o.Open(callbacks.Replica{Exposed: exposed})
	if closer, ok := sender.(io.Closer); ok {
		t.Cleanup(func() { _ = closer.Close() })
	}
	return sender, err
}

// The default is public where others can reach the API.
func TestNetworksByDefault(t *testing.T) {
	for _, c := range []struct {
		exposed bool
		args    []string
		host    string
		want    bool
	}{
		{false, nil, "10.0.0.1", true}, {false, nil, "127.0.0.1", true}, {false, nil, "169.254.169.254", false},
		{true, nil, "10.0.0.1", false}, {true, nil, "127.0.0.1", false}, {true, nil, "8.8.8.8", true},
		{true, []string{"--webhook-networks=any"}, "127.0.0.1", true},
		{true, []string{"--webhook-networks=private"}, "10.0.0.1", true}, {true, []string{"--webhook-networks=private"}, "8.8.8.8", false},
		{false, []string{"--webhook-networks=public"}, "127.0.0.1", false},
		{true, []string{"--webhook-allow=10.0.0.0/8", "--webhook-allow=172.16.0.0/12", "--webhook-deny=10.9.0.0/16"}, "10.8.0.1", true},
		{true, []string{"--webhook-allow=10.0.0.0/8", "--webhook-deny=10.9.0.0/16"}, "10.9.0.1", false},
		{true, []string{"--webhook-ports=443"}, "8.8.8.8", false}, {true, []string{"--webhook-ports=80"}, "example.com", true},
	} {
		sender, err := opened(t, c.exposed, c.args...)
		if err != nil {
			t.Fatal(err)
		}
		if err := sender.Validate(data("url", "http://"+c.host+"/")); (err == nil) != c.want {
			t.Errorf("exposed %t, %v: %s: %v", c.exposed, c.args, c.host, err)
		}
	}
	for _, arg := range []string{"--webhook-networks=some", "--webhook-allow=10.0.0.1/8", "--webhook-deny=x", "--webhook-ports=0", "--webhook-proxy=no"} {
		if _, err := opened(t, true, arg); err == nil {
			t.Errorf("%s is accepted", arg)
		}
	}
}

// With a proxy, addresses can't be checked: that is not done unawares.
func TestProxy(t *testing.T) {
	proxied := make(chan string, 10)
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		proxied <- req.URL.Host
		http.Error(w, "from the proxy", http.StatusBadGateway)
	}))
	defer proxy.Close()
	port, within := receiverAt(t, "127.0.0.1", "0", nil)
	t.Setenv("HTTP_PROXY", proxy.URL)
	t.Setenv("NO_PROXY", "direct.test,10.0.0.0/8")
	send := func(s callbacks.Sender, host string) (string, error) {
		err := s.Send(t.Context(), delivery(data("url", "http://"+host+":"+port+"/")))
		select {
		case by := <-proxied:
			return by, err
		default:
			return "", err
		}
	}
	isRefused := func(err error) bool {
		failure, _ := errors.AsType[*callbacks.Failure](err)
		return failure != nil && failure.Refused
	}

	for _, restricted := range []string{"--webhook-networks=public", "--webhook-networks=private", "--webhook-deny=10.0.0.0/8", "--webhook-ports=443"} {
		if _, err := opened(t, false, restricted); err == nil || !strings.Contains(err.Error(), "--webhook-proxy") {
			t.Errorf("%s with a proxy: %v", restricted, err)
		}
	}
	anything, err := opened(t, false)
	if err != nil {
		t.Fatal(err)
	}
	if by, err := send(anything, "outside.test"); by == "" || !strings.Contains(fmt.Sprint(err), "from the proxy") {
		t.Errorf("where anything may be called, the proxy is used: %q, %v", by, err)
	}
	if by, err := send(anything, "169.254.169.254"); by != "" || !isRefused(err) {
		t.Errorf("the proxy is asked for a metadata service: %q, %v", by, err)
	}

	trusting, err := opened(t, true, "--webhook-proxy=trust")
	if err != nil {
		t.Fatal(err)
	}
	if by, err := send(trusting, "outside.test"); by == "" || err == nil || strings.Contains(err.Error(), "from the proxy") {
		t.Errorf("a proxy that is trusted is used, and its answers are not shown: %q, %v", by, err)
	}
	for _, host := range []string{"192.168.0.1", "0xc0a80001", "10.0.0.1"} {
		if by, err := send(trusting, host); by != "" || !isRefused(err) {
			t.Errorf("%s is asked of the proxy: %q, %v", host, by, err)
		}
	}

	options := webhook.Options{Guard: guard.Guard{Networks: guard.Public}, Proxy: webhook.ProxyTrust, Resolver: zone{"direct.test": {"127.0.0.1"}}.serve(t)}
	if by, err := send(newSender(t, options), "direct.test"); by != "" || !isRefused(err) {
		t.Errorf("what does not go by the proxy is checked here: %q, %v", by, err)
	}
	ignoring, err := opened(t, true, "--webhook-proxy=ignore", "--webhook-allow=127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	before := within.Load()
	if by, err := send(ignoring, "127.0.0.1"); by != "" || err != nil || within.Load() != before+1 {
		t.Errorf("a proxy that is ignored: %q, %v", by, err)
	}
}
