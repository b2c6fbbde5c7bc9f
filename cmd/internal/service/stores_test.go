package service

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// TestStoresAreDocumented: docs/stores.md has a URL of each kind of store, the help too, and MongoDB is named first.
func TestStoresAreDocumented(t *testing.T) {
	docs, err := os.ReadFile("../../../docs/stores.md")
	if err != nil {
		t.Fatal(err)
	}
	var known []string
	for _, k := range storeKinds {
		for _, scheme := range k.schemes {
			if slices.Contains(known, scheme) {
				t.Errorf("two kinds of stores have the scheme %s", scheme)
			}
			known = append(known, scheme)
		}
		if name := k.schemes[0] + ":"; !strings.Contains(string(docs), name) || !strings.HasPrefix(k.example, name) {
			t.Errorf("docs/stores.md or the help has no URL that begins with %s", name)
		}
	}
	if !strings.HasPrefix(StoreExamples(), "mongodb://") {
		t.Errorf("the help begins with %s", StoreExamples())
	}
}
