package callbacks_test

import (
	"strings"
	"testing"

	"github.com/carillon-scheduler/carillon/callbacks"
)

func TestGrants(t *testing.T) {
	for _, c := range []struct {
		list, tenant, destination string
		want                      bool
	}{
		{"", "acme", "anything", true},
		{"acme=orders", "acme", "orders", true}, {"acme=orders", "acme", "orders2", false}, {"acme=orders", "other", "orders", false},
		{"acme=orders", "acme", "Orders", false}, {"acme=orders,acme=mails", "acme", "mails", true},
		{"acme=orders.*", "acme", "orders.new", true}, {"acme=orders.*", "acme", "orders.", true}, {"acme=orders.*", "acme", "orders", false},
		{"acme=*.new", "acme", "orders.new", true}, {"acme=*.new", "acme", "orders.new.", false},
		{"acme=a*b*c", "acme", "abc", true}, {"acme=a*b*c", "acme", "a-b-b-c", true}, {"acme=a*b*c", "acme", "acb", false},
		{"acme=a*a", "acme", "a", false}, {"acme=a*a", "acme", "aa", true}, {"acme=a**b", "acme", "ab", true}, {"acme=*", "acme", "", true},
		{"acme=a*bc*c", "acme", "abc", false},
		{"*=public.*, acme=own", "other", "public.x", true}, {"*=public.*, acme=own", "other", "own", false},
		{"*=public.*, acme=own", "acme", "own", true}, {"acme=a.b", "acme", "axb", false}, {"acme=[a]", "acme", "a", false},
		{"acme=x=y", "acme", "x=y", true},
	} {
		var g callbacks.Grants
		if c.list != "" {
			if err := g.Set(c.list); err != nil {
				t.Fatal(err)
			}
		}
		if got := g.Allow(c.tenant, c.destination); got != c.want {
			t.Errorf("%q allows %s %q: %t", c.list, c.tenant, c.destination, got)
		}
	}
	for _, list := range []string{"", "acme", "acme=", "=x", "a b=x", "acme=x,", "a*=x"} {
		var g callbacks.Grants
		if err := g.Set(list); err == nil || !strings.Contains(err.Error(), "acme=orders.*") {
			t.Errorf("%q: %v", list, err)
		}
	}
}
