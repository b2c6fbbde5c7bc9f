package access

import "time"

// recent is a map that forgets what was not used for a while, and the longest unused when it is full. It has two
// halves: what is used moves to the new one, and when that is full or old, the other one is dropped in its favour.
type recent[K comparable, V any] struct {
	most int           // of each half
	keep time.Duration // how long a half is the new one, at most

	young, old map[K]V
	turned     time.Time
}

// get answers what is there, if anything.
func (r *recent[K, V]) get(key K, now time.Time) (v V, ok bool) {
	r.turn(now)
	if v, ok = r.young[key]; ok {
		return v, true
	}
	if v, ok = r.old[key]; ok {
		r.put(key, v, now)
	}
	return v, ok
}

// put puts something in the place of what is there.
func (r *recent[K, V]) put(key K, v V, now time.Time) {
	r.turn(now)
	r.young[key] = v
}

// remove removes what is there, if anything.
func (r *recent[K, V]) remove(key K) {
	delete(r.young, key)
	delete(r.old, key)
}

// turn begins a new half when that is due.
func (r *recent[K, V]) turn(now time.Time) {
	if r.young == nil || len(r.young) >= r.most || now.Sub(r.turned) >= r.keep {
		r.young, r.old, r.turned = make(map[K]V), r.young, now
	}
}
