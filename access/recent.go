package access

import "time"

// recent is a map that forgets entries after a time without use, and the longest unused ones when it is full. It has
// two halves. A used entry moves to the new half. When the new half is full or old, the old half is dropped, and the
// new one takes its place.
type recent[K comparable, V any] struct {
	most int           // of each half
	keep time.Duration // the maximum time for which a half is the new one

	young, old map[K]V
	turned     time.Time
}

// get returns the value of a key, if there is one.
func (r *recent[K, V]) get(key K, now time.Time) (v V, ok bool) {
	r.swap(now)
	if v, ok = r.young[key]; ok {
		return v, true
	}
	if v, ok = r.old[key]; ok {
		r.put(key, v, now)
	}
	return v, ok
}

// put sets the value of a key.
func (r *recent[K, V]) put(key K, v V, now time.Time) {
	r.swap(now)
	r.young[key] = v
}

// remove removes a key.
func (r *recent[K, V]) remove(key K) {
	delete(r.young, key)
	delete(r.old, key)
}

// swap starts a new half when that is due.
func (r *recent[K, V]) swap(now time.Time) {
	if r.young == nil || len(r.young) >= r.most || now.Sub(r.turned) >= r.keep {
		r.young, r.old, r.turned = make(map[K]V), r.young, now
	}
}
