package access

import (
	"testing"
	"time"
)

// Used entries stay, unused ones are forgotten, and there are never more than both halves hold.
func TestRecent(t *testing.T) {
	now := time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	r := recent[int, string]{most: 10, keep: time.Minute}
	for i := range 1000 {
		r.put(i, "x", now)
		if _, ok := r.get(0, now); !ok {
			t.Fatalf("%d later, what is used all the time is gone", i)
		}
		if n := len(r.young) + len(r.old); n > 20 {
			t.Fatalf("there are %d", n)
		}
	}
	if _, ok := r.get(999, now); !ok {
		t.Error("the last one is gone")
	}
	if _, ok := r.get(500, now); ok {
		t.Error("one that was not used is still there")
	}
	for range 10 {
		now = now.Add(time.Minute)
		if _, ok := r.get(0, now); !ok {
			t.Fatal("what is used every minute is gone")
		}
	}
	if n := len(r.young) + len(r.old); n > 2 {
		t.Errorf("what was not used for minutes is still there: %d", n)
	}
	if r.remove(0); len(r.young)+len(r.old) > 1 {
		t.Error("what was removed is still there")
	}
	if _, ok := r.get(0, now); ok {
		t.Error("what was removed is answered")
	}
}
