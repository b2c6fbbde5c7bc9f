package guard

import (
	"net/netip"
	"slices"
)

// kind is the kind of network of an address, in the words of refusals.
type kind string

const (
	public    kind = "public"
	private   kind = "private"
	linkLocal kind = "link-local"
	loopback  kind = "loopback"
	reserved  kind = "reserved"
	multicast kind = "multicast"
	tunnelled kind = "within a tunnel or a translation"
	// translated are the addresses of NAT64's well-known prefix: as public as the IPv4 addresses that they stand for.
	translated kind = "translated"
)

// kinds are the prefixes that are not public: those of IANA's registries of special-purpose addresses, and the ones for
// multicast. The longest prefix decides. IPv6 addresses beyond all of them are reserved, except for those which are
// assigned (2000::/3).
var kinds = sorted(map[kind][]string{
	private: {"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7"},

	loopback:  {"127.0.0.0/8", "::1/128", "0.0.0.0/8", "::/128"}, // Linux takes 0.0.0.0 and :: for this machine
	linkLocal: {"169.254.0.0/16", "fe80::/10"},
	multicast: {"224.0.0.0/4", "ff00::/8"},
	reserved: {
		"192.0.0.0/24",    // protocol assignments
		"192.0.2.0/24",    // documentation
		"192.31.196.0/24", // AS112
		"192.52.193.0/24", // AMT
		"192.88.99.0/24",  // 6to4 relays
		"192.175.48.0/24", // AS112
		"198.18.0.0/15",   // benchmarks
		"198.51.100.0/24", // documentation
		"203.0.113.0/24",  // documentation
		"240.0.0.0/4",     // for the future, and broadcast
		"::/0",            // all that is not assigned
		"2001::/23",       // protocol assignments
		"2001:db8::/32",   // documentation
		"2620:4f:8000::/48",
		"3fff::/20", // documentation
	},
	tunnelled: {
		"::/96", "::ffff:0:0/96", "::ffff:0:0:0/96", // IPv4 within IPv6, compatible, mapped and translated
		"64:ff9b:1::/48", // NAT64 of the own network
		"2001::/32",      // Teredo
		"2002::/16",      // 6to4
	},
	translated: {"64:ff9b::/96"},
	public:     {"0.0.0.0/0", "2000::/3"},
})

// network is a prefix and its kind.
type network struct {
	prefix netip.Prefix
	kind   kind
}

// sorted returns networks, the longest prefix first.
func sorted(of map[kind][]string) (all []network) {
	for k, prefixes := range of {
		for _, p := range prefixes {
			all = append(all, network{netip.MustParsePrefix(p), k})
		}
	}
	slices.SortFunc(all, func(a, b network) int { return b.prefix.Bits() - a.prefix.Bits() })
	return all
}

// kindOf returns the kind of one of the forms of an address.
func kindOf(a netip.Addr) kind {
	for _, n := range kinds {
		if n.prefix.Contains(a) {
			return n.kind
		}
	}
	return reserved // can't happen: the last prefixes have all addresses
}

// metadata are the addresses at which clouds give credentials and settings to any program on their machines, with the
// clouds' names.
var metadata = map[netip.Addr]string{
	netip.MustParseAddr("169.254.169.254"): "AWS, Azure, Google Cloud and others",
	netip.MustParseAddr("fd00:ec2::254"):   "AWS",
	netip.MustParseAddr("169.254.170.2"):   "AWS ECS",
	netip.MustParseAddr("169.254.170.23"):  "AWS EKS",
	netip.MustParseAddr("fd00:ec2::23"):    "AWS EKS",
	netip.MustParseAddr("fd20:ce::254"):    "Google Cloud",
	netip.MustParseAddr("168.63.129.16"):   "Azure",
	netip.MustParseAddr("100.100.100.200"): "Alibaba Cloud",
	netip.MustParseAddr("192.0.0.192"):     "Oracle Cloud",
	netip.MustParseAddr("169.254.42.42"):   "Scaleway",
	netip.MustParseAddr("fd00:42::42"):     "Scaleway",
	netip.MustParseAddr("fe80::a9fe:a9fe"): "OpenStack",
	netip.MustParseAddr("169.254.0.23"):    "Tencent Cloud",
	netip.MustParseAddr("169.254.10.10"):   "Tencent Cloud",
}

var (
	loopback4 = netip.MustParseAddr("127.0.0.1")
	loopback6 = netip.IPv6Loopback()
)

// forms returns an address without its zone, and the IPv4 addresses that packets to it may end at: tunnels and
// translators have them within. An IPv4 address within an IPv6 one of the mapped form is that address and no other.
func forms(address netip.Addr) []netip.Addr {
	a := address.WithZone("").Unmap()
	all := []netip.Addr{a}
	if a.IsUnspecified() {
		return append(all, loopback4, loopback6)
	}
	if a.Is4() {
		return all
	}
	b := a.As16()
	within := func(i, j, k, l int) { all = append(all, netip.AddrFrom4([4]byte{b[i], b[j], b[k], b[l]})) }
	switch {
	case has(a, "64:ff9b:1::/48"): // RFC 6052: where it is depends on the length of the network's own prefix
		within(6, 7, 9, 10)
		within(7, 9, 10, 11)
		within(9, 10, 11, 12)
		within(12, 13, 14, 15)
	case has(a, "2002::/16"):
		within(2, 3, 4, 5)
	case has(a, "2001::/32"): // Teredo: the server, and the client in inverted bits
		within(4, 5, 6, 7)
		all = append(all, netip.AddrFrom4([4]byte{^b[12], ^b[13], ^b[14], ^b[15]}))
	case has(a, "64:ff9b::/96"), has(a, "::ffff:0:0:0/96"), has(a, "::/96") && a != loopback6,
		b[9] == 0 && b[10] == 0x5e && b[11] == 0xfe: // the last is ISATAP
		within(12, 13, 14, 15)
	}
	return all
}

func has(a netip.Addr, prefix string) bool { return netip.MustParsePrefix(prefix).Contains(a) }
