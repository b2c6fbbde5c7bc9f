package service

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"time"
)

// TestCollectRarely has a small heap, a large one, and a small one again.
func TestCollectRarely(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(77))
	t.Setenv("GOGC", "77")
	CollectRarely()
	if got := percent(); got != 77 {
		t.Errorf("GOGC=77 is made %d", got)
	}

	t.Setenv("GOGC", "")
	CollectRarely()
	collected(t, "a small heap", func(percent uint64) bool { return percent > 100 })
	large := make([]byte, 2*mostGarbage)
	collected(t, "a large heap", func(percent uint64) bool { return percent == 100 })
	runtime.KeepAlive(large)
	collected(t, "a small heap again", func(percent uint64) bool { return percent > 100 })
}

func percent() uint64 {
	s := []metrics.Sample{{Name: "/gc/gogc:percent"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}

// collected collects until the collector's target is as it should be.
func collected(t *testing.T, what string, ok func(percent uint64) bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(percent()); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("with %s it is %d %%", what, percent())
		}
		runtime.GC()
	}
}

func TestShareFor(t *testing.T) {
	const mib = 1 << 20
	for _, test := range []struct {
		name string
		live uint64
		want int
	}{
		{"before the first collection", 0, 800},
		{"a replica that idles", 5 * mib, 800},
		{"one that fires much", 24 * mib, 200},
		{"as much as there may be garbage", 48 * mib, 100},
		{"more than that", 500 * mib, 100},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := shareFor(test.live); got != test.want {
				t.Errorf("with %d MiB live: %d %%, want %d", test.live/mib, got, test.want)
			}
		})
	}
}
