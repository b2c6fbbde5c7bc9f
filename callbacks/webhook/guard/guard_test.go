package guard_test

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"code.dny.dev/ssrf"

	"github.com/carillon-scheduler/carillon/callbacks/webhook/guard"
)

// The kinds of addresses, and which of them each setting allows: u is public, p private, a any.
func TestCheck(t *testing.T) {
	for address, want := range map[string]string{
		"93.184.216.34": "ua", "8.8.8.8": "ua", "2606:2800:220:1::1": "ua", "2a00:1450::5": "ua",
		"::ffff:8.8.8.8":     "ua",
		"64:ff9b::8.8.8.8":   "ua", // NAT64, as on a machine with IPv6 only
		"64:ff9b::10.0.0.1":  "pa",
		"64:ff9b::127.0.0.1": "a",

		"10.0.0.1": "pa", "172.16.0.1": "pa", "172.31.255.255": "pa", "192.168.1.1": "pa", "100.64.0.1": "pa",
		"fd12:3456::1": "pa", "fc00::1": "pa", "::ffff:10.0.0.1": "pa",
		"172.15.0.1": "ua", "172.32.0.1": "ua", "192.169.0.1": "ua", "100.128.0.1": "ua", "11.0.0.1": "ua",

		"127.0.0.1": "a", "127.255.255.254": "a", "::1": "a", "::ffff:127.0.0.1": "a", "0.0.0.0": "a", "::": "a", "0.1.2.3": "a",
		"192.0.0.1": "a", "192.0.2.1": "a", "198.18.0.1": "a", "198.51.100.1": "a", "203.0.113.1": "a", "192.88.99.1": "a",
		"240.0.0.1": "a", "255.255.255.255": "a", "224.0.0.1": "a", "ff02::1": "a", "2001:db8::1": "a", "3fff::1": "a",
		"4000::1": "a", "100::1": "a", "fec0::1": "a", "5f00::1": "a",
		"2002:0808:0808::1":                    "a", // 6to4 of a public address
		"2002:7f00:1::":                        "a",
		"2001:0:808:808::1":                    "a", // Teredo
		"64:ff9b:1::8.8.8.8":                   "a", // NAT64 of the own network, for an unknown address
		"::8.8.8.8":                            "a",
		"::ffff:0:8.8.8.8":                     "a",
		"2606:2800:220:1:0:5efe:10.0.0.1":      "a", // ISATAP
		"2606:2800:220:1:200:5efe:8.8.8.8":     "ua",
		"2606:2800:220:1:200:5efe:192.168.0.1": "a",

		"169.254.1.1": "", "fe80::1": "", "fe80::1%eth0": "", "::ffff:169.254.1.1": "", "2002:a9fe:101::": "",
		"169.254.169.254": "", "fd00:ec2::254": "", "100.100.100.200": "", "168.63.129.16": "", "192.0.0.192": "",
		"169.254.170.2": "", "fd20:ce::254": "", "64:ff9b::169.254.169.254": "", "64:ff9b::100.100.100.200": "",
		"2002:a9fe:a9fe::": "", "64:ff9b:1:a9fe:a9:fe00::": "", "64:ff9b:1::a9fe:a9fe": "", "::169.254.169.254": "",
		"::ffff:0:169.254.169.254": "", "2001:0:a9fe:a9fe::1": "", "2001:0:808:808::5601:5601": "",
		"fd00:ec2::254%eth0": "", "2606:2800:220:1:0:5efe:169.254.169.254": "",
	} {
		for networks, letter := range map[guard.Networks]string{guard.Public: "u", guard.Private: "p", guard.Any: "a", "": "a"} {
			g := guard.Guard{Networks: networks}
			err := g.Check(netip.MustParseAddr(address), 443)
			if allowed := strings.Contains(want, letter); allowed != (err == nil) {
				t.Errorf("%s with %q: %v", address, networks, err)
			}
			if _, refused := errors.AsType[*guard.Refusal](err); err != nil && !refused {
				t.Errorf("%s with %q: %T is no refusal", address, networks, err)
			}
			if err != nil && strings.Contains(err.Error(), address) {
				t.Errorf("the error tells the address: %v", err)
			}
		}
	}
}

// set makes a guard of options.
func set(t *testing.T, networks guard.Networks, allow, deny, ports string) *guard.Guard {
	t.Helper()
	g := &guard.Guard{Networks: networks}
	for list, into := range map[string]interface{ Set(string) error }{"a" + allow: &g.Allow, "d" + deny: &g.Deny, "p" + ports: &g.Ports} {
		if list := list[1:]; list != "" {
			if err := into.Set(list); err != nil {
				t.Fatal(err)
			}
		}
	}
	return g
}

func TestLists(t *testing.T) {
	for name, c := range map[string]struct {
		networks           guard.Networks
		allow, deny, ports string
		address            string
		want               string // in the refusal; empty for none
	}{
		"allowed":                              {guard.Public, "10.1.0.0/16", "", "", "10.1.2.3", ""},
		"not allowed":                          {guard.Public, "10.1.0.0/16", "", "", "10.2.0.1", "private, and --webhook-networks is public"},
		"allowed, mapped":                      {guard.Public, "10.1.0.0/16", "", "", "::ffff:10.1.2.3", ""},
		"allowed, by NAT64":                    {guard.Public, "10.1.0.0/16", "", "", "64:ff9b::10.1.2.3", ""},
		"allowed, by 6to4":                     {guard.Public, "10.1.0.0/16", "", "", "2002:a01:203::1", "tunnel"},
		"denied":                               {guard.Any, "", "10.1.0.0/16", "", "10.1.2.3", "--webhook-deny"},
		"denied wins":                          {guard.Any, "10.1.2.3", "10.1.0.0/16", "", "10.1.2.3", "--webhook-deny"},
		"denied, mapped":                       {guard.Any, "", "10.1.0.0/16", "", "::ffff:10.1.2.3", "--webhook-deny"},
		"denied, by NAT64":                     {guard.Any, "", "10.1.0.0/16", "", "64:ff9b::10.1.2.3", "--webhook-deny"},
		"denied, by 6to4":                      {guard.Any, "", "10.1.0.0/16", "", "2002:a01:203::1", "--webhook-deny"},
		"denied, by Teredo":                    {guard.Any, "", "10.1.0.0/16", "", "2001:0:808:808::f5fe:fdfc", "--webhook-deny"},
		"denied, unspecified is loopback":      {guard.Any, "", "127.0.0.0/8", "", "0.0.0.0", "--webhook-deny"},
		"denied, unspecified is loopback in 6": {guard.Any, "", "::1", "", "::", "--webhook-deny"},
		"denied with a zone":                   {guard.Any, "", "fd00::/8", "", "fd00::1%lo", "--webhook-deny"},
		"metadata by itself":                   {guard.Public, "169.254.169.254", "", "", "169.254.169.254", ""},
		"metadata by itself, mapped":           {guard.Public, "169.254.169.254", "", "", "::ffff:169.254.169.254", ""},
		"metadata in a network":                {guard.Any, "169.254.0.0/16", "", "", "169.254.169.254", "metadata service"},
		"metadata in everything":               {guard.Any, "0.0.0.0/0,::/0", "", "", "fd00:ec2::254", "metadata service"},
		"others that are link-local":           {guard.Public, "169.254.0.0/16", "", "", "169.254.1.1", ""},
		"link-local":                           {guard.Any, "", "", "", "169.254.1.1", "link-local"},
		"port":                                 {guard.Public, "", "", "443,8000-8999", "8.8.8.8", ""},
		"other port":                           {guard.Any, "", "", "8000-8999", "8.8.8.8", "--webhook-ports allows 8000-8999, not 443"},
		"other port of what is allowed":        {guard.Any, "8.8.8.8", "", "80", "8.8.8.8", "--webhook-ports"},
	} {
		t.Run(name, func(t *testing.T) {
			err := set(t, c.networks, c.allow, c.deny, c.ports).Check(netip.MustParseAddr(c.address), 443)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

// This machine's own addresses are like loopback, whatever network they are in.
func TestCheckOwn(t *testing.T) {
	own := []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("93.184.216.34"), netip.MustParseAddr("2a00::1")}
	for _, c := range []struct {
		networks       guard.Networks
		allow, address string
		want           bool
	}{
		{guard.Public, "", "93.184.216.34", false}, {guard.Public, "", "::ffff:93.184.216.34", false}, {guard.Public, "", "2a00::1", false},
		{guard.Private, "", "10.0.0.1", false}, {guard.Private, "", "10.0.0.2", true}, {guard.Public, "", "93.184.216.35", true},
		{guard.Public, "93.184.216.34", "93.184.216.34", true}, {guard.Any, "", "10.0.0.1", true}, {"", "", "10.0.0.1", true},
	} {
		err := set(t, c.networks, c.allow, "", "").CheckOwn(netip.MustParseAddr(c.address), own)
		if (err == nil) != c.want || err != nil && !strings.Contains(err.Error(), "this machine's own") {
			t.Errorf("%s with %q and %q: %v", c.address, c.networks, c.allow, err)
		}
	}
}

func TestLiterals(t *testing.T) {
	for host, want := range map[string]string{
		"127.0.0.1": "127.0.0.1", "127.0.0.1.": "127.0.0.1", "127.1": "127.0.0.1", "127.0.1": "127.0.0.1", "2130706433": "127.0.0.1",
		"0x7f000001": "127.0.0.1", "0X7F.0.0.1": "127.0.0.1", "017700000001": "127.0.0.1", "0177.0.0.01": "127.0.0.1",
		"0x7f.0x0.0x0.0x1": "127.0.0.1", "0x7f.1": "127.0.0.1", "0": "0.0.0.0", "0x0": "0.0.0.0", "00.0": "0.0.0.0",
		"192.168.257": "192.168.1.1", "0xa9fea9fe": "169.254.169.254", "2852039166": "169.254.169.254",
		"169.254.43518": "169.254.169.254", "0251.0376.0251.0376": "169.254.169.254", "4294967295": "255.255.255.255",
		"::1": "::1", "::ffff:127.0.0.1": "::ffff:127.0.0.1", "fe80::1%eth0": "fe80::1%eth0", "64:FF9B::7F00:1": "64:ff9b::7f00:1",
		"localhost": "127.0.0.1", "LOCALHOST.": "127.0.0.1", "any.localhost": "127.0.0.1",
		"example.com": "", "4294967296": "", "127.0.0.1.1": "", "127.0.0.256": "", "256.0.0.1": "", "08.0.0.1": "", "web.1": "", "beef": "",
		"0xg": "", "1..2": "", "": "", "1.2.3.x": "", "localhost.example.com": "", "127.0.0.0x1ffffffff": "",
	} {
		all := guard.Literals(host)
		switch {
		case want == "" && len(all) > 0:
			t.Errorf("%q is taken for %v", host, all)
		case want != "" && (len(all) == 0 || all[0] != netip.MustParseAddr(want)):
			t.Errorf("%q is taken for %v, want %s", host, all, want)
		}
	}
}

// A name is looked up elsewhere, so only its port can be refused.
func TestCheckHost(t *testing.T) {
	g := set(t, guard.Public, "10.0.0.1", "", "443")
	for _, c := range []struct {
		host string
		port uint16
		want bool
	}{
		{"example.com", 443, true}, {"example.com", 80, false}, {"8.8.8.8", 443, true}, {"8.8.8.8", 80, false},
		{"10.0.0.1", 443, true}, {"10.0.0.2", 443, false}, {"localhost", 443, false}, {"0x0a.1", 443, true}, {"0x0a.2", 443, false},
	} {
		if err := g.CheckHost(c.host, c.port); (err == nil) != c.want {
			t.Errorf("%s:%d: %v", c.host, c.port, err)
		}
	}
	if err := set(t, guard.Public, "::1", "", "").CheckHost("localhost", 80); err != nil {
		t.Errorf("one of its addresses is allowed, but: %v", err)
	}
}

func TestQuotes(t *testing.T) {
	for _, c := range []struct {
		networks guard.Networks
		address  string
		want     bool
	}{
		{guard.Any, "10.0.0.1", true}, {"", "127.0.0.1", true}, {guard.Public, "8.8.8.8", true}, {guard.Public, "10.0.0.1", false},
		{guard.Private, "10.0.0.1", false}, {guard.Private, "8.8.8.8", true}, {guard.Public, "64:ff9b::10.0.0.1", false},
	} {
		g := guard.Guard{Networks: c.networks}
		if got := g.Quotes(netip.MustParseAddr(c.address)); got != c.want {
			t.Errorf("%s with %q: %t", c.address, c.networks, got)
		}
	}
	g := guard.Guard{Networks: guard.Public}
	if g.Quotes(netip.Addr{}) {
		t.Error("an answer from nobody knows where is shown")
	}
}

// An address that another project refuses, by tables made of IANA's registries, is not public here either. That project
// does not decode addresses of NAT64, so it is asked about the embedded address.
func TestTablesOfOthers(t *testing.T) {
	theirs := ssrf.New()
	ours := guard.Guard{Networks: guard.Public}
	passed := 0
	look := func(a netip.Addr) {
		t.Helper()
		if err := ours.Check(a, 443); err != nil {
			return
		}
		passed++
		if b := a.As16(); ssrf.IPv6NAT64Prefix.Contains(a) {
			a = netip.AddrFrom4([4]byte(b[12:]))
		}
		network := "tcp4"
		if a.Is6() {
			network = "tcp6"
		}
		if err := theirs.Safe(network, netip.AddrPortFrom(a, 443).String(), nil); err != nil {
			t.Errorf("%s is allowed, but: %v", a, err)
		}
	}
	for _, prefixes := range [][]netip.Prefix{ssrf.IPv4DeniedPrefixes, ssrf.IPv6DeniedPrefixes} {
		for _, p := range prefixes {
			look(p.Addr())
			look(p.Addr().Next())
			look(p.Addr().Prev())
		}
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		var b [16]byte
		binary.BigEndian.PutUint64(b[:8], random.Uint64())
		binary.BigEndian.PutUint64(b[8:], random.Uint64())
		look(netip.AddrFrom16(b))
		look(netip.AddrFrom4([4]byte(b[:4])))
		copy(b[:12], netip.MustParseAddr("64:ff9b::").AsSlice())
		look(netip.AddrFrom16(b))
	}
	if passed < 10_000 {
		t.Errorf("only %d addresses are allowed: this test shows nothing", passed)
	}
}

// FuzzLists: an accepted list has its literal meaning, however it is spelled, and its String can be parsed again.
func FuzzLists(f *testing.F) {
	for _, s := range []string{"10.0.0.0/8", "10.1.2.3, fd00::/8", "::ffff:10.0.0.0/104", "10.0.0.1/8", "010.0.0.1", "fe80::1%eth0", "::/0",
		"443", "1-65535", "8000-80", "443,", "0x7f.1", "2130706433", "10.0.0.0/008", "１０.0.0.1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, list string) {
		var p guard.Prefixes
		if p.Set(list) == nil {
			var again guard.Prefixes
			if err := again.Set(p.String()); err != nil || again.String() != p.String() {
				t.Errorf("%q is shown as %q, which is %q: %v", list, p, again, err)
			}
			g := guard.Guard{Deny: p}
			for _, n := range p {
				if g.Check(n.Addr(), 1) == nil || n.Addr().Is4() && g.Check(netip.AddrFrom16(n.Addr().As16()), 1) == nil {
					t.Errorf("%q does not deny %s", list, n)
				}
			}
		}
		var ports guard.Ports
		if ports.Set(list) == nil {
			var again guard.Ports
			if err := again.Set(ports.String()); err != nil || again.String() != ports.String() || again.Contain(0) {
				t.Errorf("%q is shown as %q, which is %q: %v", list, ports, again, err)
			}
		}
		for _, a := range guard.Literals(list) {
			if !a.IsValid() {
				t.Errorf("%q stands for no address", list)
			}
		}
	})
}

// Lists that are likely mistakes are refused, and the error has a valid form.
func TestListsAtFault(t *testing.T) {
	for _, s := range []string{"", "10.0.0.1/8", "10.0.0.0/33", "::ffff:10.0.0.0/104", "::ffff:10.0.0.1", "fe80::1%eth0", "example.com", "010.0.0.1",
		"10.0.0.0/8;", "10.0.0.0/8,,", "127.1", "10.0.0.0 /8", "10.0.0.0-10.0.0.9"} {
		var p guard.Prefixes
		if err := p.Set(s); err == nil || !strings.Contains(err.Error(), "10.0.0.0/8") {
			t.Errorf("%q: %v", s, err)
		}
	}
	for _, s := range []string{"", "0", "65536", "80-", "-80", "90-80", "http", "80,,81", "+80"} {
		var p guard.Ports
		if err := p.Set(s); err == nil || !strings.Contains(err.Error(), "8000-8999") {
			t.Errorf("%q: %v", s, err)
		}
	}
}
