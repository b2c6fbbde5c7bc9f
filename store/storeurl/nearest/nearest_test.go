package nearest_test

import (
	"testing"

	"github.com/carillon-scheduler/carillon/store/storeurl/nearest"
)

func TestName(t *testing.T) {
	known := []string{"store", "store-wait", "replicaSet", "tick", "w"}
	for name, want := range map[string]string{
		"store": "store", "stoer": "store", "STORE": "store", "tik": "tick",
		"store_wait": "store-wait", "replicaset": "replicaSet", "replicatSets": "replicaSet", "replica": "", "tikk": "tick", "ti": "", "store-fiel": "",
		"colour": "", "": "", "quota": "", "sharding": "", "xyz": "",
	} {
		if got := nearest.Name(name, known); got != want {
			t.Errorf("the nearest name to %q is %q, want %q", name, got, want)
		}
	}
}
