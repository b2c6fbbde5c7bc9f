package access_test

import (
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/access"
)

// BenchmarkAuthenticate measures a request with a cached key.
func BenchmarkAuthenticate(b *testing.B) {
	bench := newBench(b)
	token, _ := bench.create(admin)
	for b.Loop() {
		if _, err := bench.keys.Authenticate(b.Context(), token, epoch); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkAuthenticateOthers measures requests with many keys in turns, on all processors.
func BenchmarkAuthenticateOthers(b *testing.B) {
	bench := newBench(b)
	var tokens []string
	for range 1000 {
		token, _ := bench.create(access.KeyParams{Role: access.Viewer, Scope: access.Everything()})
		tokens = append(tokens, token)
	}
	b.RunParallel(func(pb *testing.PB) {
		for i := 0; pb.Next(); i++ {
			if _, err := bench.keys.Authenticate(b.Context(), tokens[i%len(tokens)], time.Now()); err != nil {
				b.Fatal(err)
			}
		}
	})
}
