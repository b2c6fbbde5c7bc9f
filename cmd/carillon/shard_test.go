package main

import (
	"strings"
	"testing"
)

// TestShardUsage: the command says which store it needs. Package mongosim tests the sharding itself.
func TestShardUsage(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"shard"}, "--store is missing"},
		{[]string{"shard", "--store=sqlite:carillon.db"}, "only a MongoDB database"},
		{[]string{"shard", "--store=postgres://u:hidden@127.0.0.1/carillon"}, "only a MongoDB database"},
	} {
		_, stderr := carillon(t, 2, c.args...)
		expectContains(t, "the error", stderr, c.want)
		if strings.Contains(stderr, "hidden") {
			t.Errorf("the error has the password: %s", stderr)
		}
	}
}
