package callbacks_test

import (
	"testing"

	"github.com/carillon-scheduler/carillon/callbacks"
)

// Without traces there is no cost. The headers are tested by the suite of senders.
func TestNoTraceCostsNothing(t *testing.T) {
	own := map[string]string{"x-a": "1", "x-b": "2"}
	d := &callbacks.Delivery{}
	if n := testing.AllocsPerRun(100, func() {
		for range callbacks.TraceHeaders(d, own) {
			t.Error("there is a header")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
