// Package guard decides which addresses webhooks may be sent to. It is pure: no look-ups and no connections. A dialler
// checks the dialled address of each connection; see docs/network.md.
package guard

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Networks is the kind of addresses that may be called.
type Networks string

// The kinds.
const (
	// Any are all addresses but link-local ones and those of metadata services.
	Any Networks = "any"
	// Public are the addresses that are routed in the Internet.
	Public Networks = "public"
	// Private are the addresses of private networks, but not this machine's own.
	Private Networks = "private"
)

// Guard is a set of rules. The zero value has those of [Any]. It is safe for concurrent use as long as it does not
// change.
type Guard struct {
	// Networks is the kind of addresses that may be called; empty is [Any].
	Networks Networks
	// Allow lists addresses that may be called in addition to Networks. A metadata service must be listed by its single
	// address.
	Allow Prefixes
	// Deny lists addresses that must not be called. It overrides Allow.
	Deny Prefixes
	// Ports are the ports that may be called; empty for all.
	Ports Ports
}

// Restricts reports whether the rules are stricter than those of [Any].
func (g *Guard) Restricts() bool {
	return g.Networks != Any && g.Networks != "" || len(g.Deny) > 0 || len(g.Ports) > 0
}

// Refusal is the error of an address that must not be called. Its text names the rule. It does not contain the address:
// a client must not learn the addresses of names within the operator's network.
type Refusal struct{ text string }

func (r *Refusal) Error() string { return r.text }

func refuse(format string, args ...any) error { return &Refusal{fmt.Sprintf(format, args...)} }

// Check returns a [*Refusal] if a port at an address must not be called. An IPv6 address that stands for IPv4 addresses
// is refused if one of these is.
func (g *Guard) Check(address netip.Addr, port uint16) error {
	if err := g.CheckPort(port); err != nil {
		return err
	}
	all := forms(address)
	for _, a := range all {
		if g.Deny.Contain(a) {
			return refuse("its address is one that --webhook-deny lists")
		}
		if name := metadata[a]; name != "" && !g.Allow.List(a) {
			return refuse("its address is that of a metadata service (%s); only --webhook-allow with this single address "+
				"allows it", name)
		}
	}
	for _, a := range all {
		if err := g.checkNetwork(a); err != nil {
			return err
		}
	}
	return nil
}

// CheckOwn returns a [*Refusal] if an address is one of this machine's own, which are given. A service there may be for
// this machine only, even if the address is public or private.
func (g *Guard) CheckOwn(address netip.Addr, own []netip.Addr) error {
	a := address.WithZone("").Unmap()
	if g.Networks == Any || g.Networks == "" || g.Allow.Contain(a) || !slices.Contains(own, a) {
		return nil
	}
	return refuse("its address is this machine's own, and --webhook-networks is %s", g.Networks)
}

// CheckPort returns a [*Refusal] if no address may be called at the port.
func (g *Guard) CheckPort(port uint16) error {
	if len(g.Ports) > 0 && !g.Ports.Contain(port) {
		return refuse("--webhook-ports allows %s, not %d", g.Ports, port)
	}
	return nil
}

// checkNetwork checks the kind of an address.
func (g *Guard) checkNetwork(a netip.Addr) error {
	k := kindOf(a)
	switch {
	case k == translated, g.Allow.Contain(a): // the IPv4 address that the former stands for is checked itself
		return nil
	case k == linkLocal:
		return refuse("its address is link-local; only --webhook-allow can allow it")
	case g.Networks == Public && k != public, g.Networks == Private && k != private:
		return refuse("its address is %s, and --webhook-networks is %s", k, g.Networks)
	}
	return nil
}

// CheckHost returns a [*Refusal] if a port at a host is forbidden without any look-up: the port is forbidden, or the
// host is a forbidden literal address in any spelling, or localhost. It returns nil for any other name.
func (g *Guard) CheckHost(host string, port uint16) error {
	err := g.CheckPort(port)
	for _, a := range Literals(host) {
		if err = g.Check(a, port); err == nil {
			return nil
		}
	}
	return err
}

// Quotes reports whether answers from an address may be shown to the clients that submit jobs. Under [Any] all may be
// shown. Otherwise, answers from within the operator's networks may not.
func (g *Guard) Quotes(address netip.Addr) bool {
	return g.Networks == Any || g.Networks == "" || IsPublic(address)
}

// IsPublic reports whether an address, with all IPv4 addresses that it stands for, is routed in the Internet.
func IsPublic(address netip.Addr) bool {
	for _, a := range forms(address) {
		if k := kindOf(a); k != public && k != translated {
			return false
		}
	}
	return true
}

// Literals returns the addresses that a host means without a look-up; none for an ordinary name.
func Literals(host string) []netip.Addr {
	host = strings.ToLower(strings.TrimRight(host, "."))
	if host == "localhost" || strings.HasSuffix(host, ".localhost") { // RFC 6761
		return []netip.Addr{loopback4, loopback6}
	}
	if a, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{a}
	}
	if a, ok := parseNumbers(host); ok {
		return []netip.Addr{a}
	}
	return nil
}

// parseNumbers reads an IPv4 address as C libraries and browsers do: one to four numbers, each decimal, octal (0…) or
// hexadecimal (0x…). The last one fills the remaining bytes.
func parseNumbers(host string) (a netip.Addr, ok bool) {
	parts := strings.Split(host, ".")
	if len(parts) > 4 {
		return a, false
	}
	var sum uint64
	for i, part := range parts {
		n, ok := parseNumber(part)
		last := i == len(parts)-1
		most := uint64(255)
		if last {
			most = 1<<(8*(5-len(parts))) - 1
		}
		if !ok || n > most {
			return a, false
		}
		if last {
			sum |= n
		} else {
			sum |= n << (8 * (3 - i))
		}
	}
	return netip.AddrFrom4([4]byte{byte(sum >> 24), byte(sum >> 16), byte(sum >> 8), byte(sum)}), true
}

// parseNumber reads a number of at most 32 bits with the prefixes of C.
func parseNumber(s string) (n uint64, ok bool) {
	base := uint64(10)
	switch {
	case strings.HasPrefix(s, "0x"):
		s, base = s[2:], 16
		if s == "" { // some parsers read it as 0
			return 0, true
		}
	case len(s) > 1 && s[0] == '0':
		s, base = s[1:], 8
	}
	for _, c := range []byte(s) {
		digit := strings.IndexByte("0123456789abcdef", c)
		if digit < 0 || uint64(digit) >= base {
			return 0, false
		}
		if n = n*base + uint64(digit); n >= 1<<32 {
			return 0, false
		}
	}
	return n, s != ""
}
