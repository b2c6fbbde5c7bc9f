package history_test

import (
	"reflect"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/history"
	"github.com/carillon-scheduler/carillon/job"
)

func TestSegmentsAreWhatTheyWere(t *testing.T) {
	for name, entries := range map[string][]history.Entry{
		"variety": variety(), "attempts": attempts(1000, epoch), "none": nil, "one": variety()[1:2],
	} {
		for _, gap := range []history.Gap{{}, {From: epoch, Until: epoch.Add(time.Minute)}} {
			for i := range entries {
				entries[i].At = entries[i].At.Truncate(time.Millisecond)
				if !entries[i].Kind.Attempt() {
					entries[i].Claimed = time.Time{}
				}
			}
			if name == "variety" {
				entries[2].Next = time.Time{} // a time before it was sent can't be stored
			}
			body := history.EncodeSegment(entries, gap)
			entries := history.Sorted(entries)
			got, gotGap, err := history.DecodeSegment(body)
			if err != nil || gotGap != gap || len(got) != len(entries) {
				t.Fatalf("%s: got %d entries and %v, %v", name, len(got), gotGap, err)
			}
			for i := range got {
				if !reflect.DeepEqual(got[i], entries[i]) {
					t.Errorf("%s: got\n%+v, want\n%+v", name, got[i], entries[i])
				}
			}
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, entries := range [][]history.Entry{variety(), attempts(20, epoch), nil} {
		body := history.EncodeSegment(entries, history.Gap{})
		f.Add(body)
		f.Add(body[:len(body)/2])
		f.Add(body[1:])
	}
	f.Add([]byte{1})
	f.Fuzz(func(t *testing.T, body []byte) {
		_ = history.DecodeRun(body)
		entries, gap, err := history.DecodeSegment(body)
		if err != nil {
			return
		}
		again, gapAgain, err := history.DecodeSegment(history.EncodeSegment(entries, gap))
		if err != nil || len(again) != len(entries) || gap != gapAgain {
			t.Errorf("what was decoded can't be encoded and decoded: %d of %d entries, %v", len(again), len(entries), err)
		}
	})
}

// A firing takes no more than 50 bytes of the store, whatever the keys are like.
func TestBytesPerFiring(t *testing.T) {
	for name, key := range map[string]func(i int, e *history.Entry) string{
		"numbered":  func(_ int, e *history.Entry) string { return e.Name.Key },
		"random":    func(i int, _ *history.Entry) string { return string(job.NewRevision(epoch.Add(time.Duration(i)))) },
		"same jobs": func(i int, _ *history.Entry) string { return "every-second/" + string(rune('a'+i%26)) },
	} {
		entries := attempts(history.PerSegment, epoch)
		for i := range entries {
			e := &entries[i]
			e.Name.Key = key(i, e)
		}
		each := float64(len(history.EncodeSegment(entries, history.Gap{}))) / float64(len(entries))
		t.Logf("%s keys: %.1f bytes", name, each)
		if each > 40 { // the rest is for the records and for segments that are not merged
			t.Errorf("%s keys: a firing takes %.1f bytes", name, each)
		}
	}
}
