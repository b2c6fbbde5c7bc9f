package status

import (
	"context"
	"encoding/json"
	"sync"
	"time"
)

// DayHours is the number of hours for which lateness is reported hour by hour.
const DayHours = 24

// hoursKept is the number of hours that a watch remembers, so that those that could not be stored are stored later.
const hoursKept = DayHours + 1

// hourSlot has the counts of an hour, and how many of them were stored.
type hourSlot struct {
	slot
	fired, stored int
}

// Hour has the lateness of the first firings of an hour, by one replica or by several.
type Hour struct {
	// From is the beginning of the hour, in UTC.
	From time.Time `json:"-"`
	Counts
}

// Encode returns the counts as they are stored.
func (h Hour) Encode() []byte { return encode(h.Counts) }

// DecodeHour is the inverse of [Hour.Encode]; ok is false if it can't be read.
func DecodeHour(from time.Time, b []byte) (h Hour, ok bool) {
	h.From = from
	return h, json.Unmarshal(b, &h.Counts) == nil
}

// countHour counts an occurrence for its hour. The lock is held.
func (w *Watch) countHour(now time.Time, late time.Duration) {
	number := hourOf(now)
	h := &w.hours[number%hoursKept]
	if h.number != number {
		*h = hourSlot{}
	}
	h.count(number, late)
	h.fired++
}

func hourOf(t time.Time) int64 { return t.Unix() / int64(time.Hour/time.Second) }

func (h *hourSlot) hour() Hour {
	return Hour{
		From: time.Unix(h.number*int64(time.Hour/time.Second), 0).UTC(), Counts: Counts{Lateness: h.counts[:], Max: h.max},
	}
}

// Hours returns the hours of the last day in which this replica has fired something.
func (w *Watch) Hours() []Hour { return w.hoursThat(func(*hourSlot) bool { return true }) }

// Unstored returns the hours whose counts have changed since they were stored: see [Watch.Stored].
func (w *Watch) Unstored() []Hour {
	return w.hoursThat(func(h *hourSlot) bool { return h.fired != h.stored })
}

func (w *Watch) hoursThat(wanted func(*hourSlot) bool) (all []Hour) {
	if w == nil {
		return nil
	}
	oldest := hourOf(w.now()) - DayHours
	w.lock.Lock()
	defer w.lock.Unlock()
	for i := range w.hours {
		if h := w.hours[i]; h.fired > 0 && h.number > oldest && wanted(&h) { // a copy
			all = append(all, h.hour())
		}
	}
	return all
}

// Stored notes that hours were stored as [Watch.Unstored] has returned them.
func (w *Watch) Stored(hours []Hour) {
	if w == nil {
		return
	}
	w.lock.Lock()
	defer w.lock.Unlock()
	for i := range hours {
		number := hourOf(hours[i].From)
		if h := &w.hours[number%hoursKept]; h.number == number {
			h.stored = hours[i].Fired()
		}
	}
}

// Day reports the lateness of the last hours. It is safe for concurrent use.
type Day struct {
	// Own is the watch of this replica.
	Own *Watch
	// Others reads the stored hours of the other replicas from since on, also those of stopped ones.
	Others func(ctx context.Context, since, now time.Time) ([]Hour, error)

	lock   sync.Mutex
	readAt time.Time
	read   []Hour
}

// readEvery is the age at which the hours of other replicas are read again.
const readEvery = 30 * time.Second

// Hours returns the last [DayHours] hours, the oldest first, with the counts of all replicas. The last one is the
// present hour. The error is that of Others.
func (d *Day) Hours(ctx context.Context, now time.Time) ([]Hour, error) {
	first := time.Unix((hourOf(now)-DayHours+1)*int64(time.Hour/time.Second), 0).UTC()
	others, err := d.others(ctx, first, now)
	if err != nil {
		return nil, err
	}
	all := make([]Hour, DayHours)
	for i := range all {
		all[i].From = first.Add(time.Duration(i) * time.Hour)
	}
	for _, part := range [][]Hour{others, d.Own.Hours()} {
		for _, h := range part {
			if i := int(h.From.Sub(first) / time.Hour); !h.From.Before(first) && i < len(all) {
				all[i].Add(h.Counts)
			}
		}
	}
	return all, nil
}

// others returns the stored hours of the other replicas. It reads them at most once in readEvery.
func (d *Day) others(ctx context.Context, since, now time.Time) ([]Hour, error) {
	d.lock.Lock()
	defer d.lock.Unlock()
	if d.Others == nil || !d.readAt.IsZero() && now.Sub(d.readAt).Abs() < readEvery {
		return d.read, nil
	}
	read, err := d.Others(ctx, since, now)
	if err == nil {
		d.read, d.readAt = read, now
	}
	return read, err
}
