package mongosim_test

import (
	"context"
	"testing"

	"github.com/carillon-scheduler/carillon/history/historytest"
	"github.com/carillon-scheduler/carillon/sim/mongosim"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/mongodb"
	"github.com/carillon-scheduler/carillon/store/storetest"
)

// calm is a network without faults.
type calm struct{}

func (calm) Dial(context.Context, string) error           { return nil }
func (calm) Command(string, string, string) mongosim.Fate { return mongosim.Fate{} }

// TestStore: the store for MongoDB passes its suites on the simulated server, so the server answers as a real one does.
// TestRouter runs the suite of package storetest in CI, on a server that refuses more; a long test runs it here too, and on
// another server.
func TestStore(t *testing.T) {
	newStore := func(t *testing.T) storetest.Opener {
		server := mongosim.New(calm{})
		return func() (store.Store, error) {
			return mongodb.OpenThrough(t.Context(), mongosim.URL, server.Dialer("test"))
		}
	}
	if storetest.Long() {
		storetest.Run(t, newStore)
	}
	historytest.Run(t, newStore)
}
