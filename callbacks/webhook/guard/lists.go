package guard

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Prefixes are addresses and networks in CIDR notation. It implements [flag.Value]: a list has commas between its
// entries, and an option that is given again adds to it.
type Prefixes []netip.Prefix

// Set adds a list.
func (p *Prefixes) Set(list string) error {
	for entry := range strings.SplitSeq(list, ",") {
		parsed, err := parsePrefix(strings.TrimSpace(entry))
		if err != nil {
			return err
		}
		*p = append(*p, parsed)
	}
	return nil
}

// parsePrefix reads an address or a network. It accepts one spelling of each, so that no rule is mistaken for another.
func parsePrefix(s string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" && !a.Is4In6() {
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(s)
	switch {
	case err != nil || p.Addr().Is4In6():
		return p, fmt.Errorf("must be addresses or networks such as 10.1.2.3, 10.0.0.0/8 or fd00::/8, with commas between "+
			"them, not %q", s)
	case p != p.Masked():
		return p, fmt.Errorf("%q has bits beyond its length; is %s meant?", s, p.Masked())
	}
	return p, nil
}

// String implements [flag.Value].
func (p Prefixes) String() string { return join(p, netip.Prefix.String) }

// Contain reports whether an address is in one of the networks.
func (p Prefixes) Contain(a netip.Addr) bool {
	return slices.ContainsFunc(p, func(n netip.Prefix) bool { return n.Contains(a) })
}

// List reports whether an address is in the list by itself.
func (p Prefixes) List(a netip.Addr) bool {
	return slices.ContainsFunc(p, func(n netip.Prefix) bool { return n.IsSingleIP() && n.Addr() == a })
}

// PortRange is the ports from one to another, both included.
type PortRange struct{ First, Last uint16 }

func (r PortRange) String() string {
	if r.First == r.Last {
		return strconv.Itoa(int(r.First))
	}
	return fmt.Sprintf("%d-%d", r.First, r.Last)
}

// Ports are port numbers. It implements [flag.Value], in the manner of [Prefixes].
type Ports []PortRange

// Set adds a list.
func (p *Ports) Set(list string) error {
	for entry := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(strings.TrimSpace(entry), "-")
		if !isRange {
			last = first
		}
		r := PortRange{parsePort(first), parsePort(last)}
		if r.First == 0 || r.Last < r.First {
			return fmt.Errorf("must be ports such as 443 or 8000-8999, with commas between them, not %q", entry)
		}
		*p = append(*p, r)
	}
	return nil
}

// parsePort reads a port; 0 if it is none.
func parsePort(s string) uint16 {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil {
		return 0
	}
	return uint16(n)
}

// String implements [flag.Value].
func (p Ports) String() string { return join(p, PortRange.String) }

// Contain reports whether a port is among them.
func (p Ports) Contain(port uint16) bool {
	return slices.ContainsFunc(p, func(r PortRange) bool { return r.First <= port && port <= r.Last })
}

func join[T any](all []T, text func(T) string) string {
	texts := make([]string, len(all))
	for i, v := range all {
		texts[i] = text(v)
	}
	return strings.Join(texts, ",")
}
