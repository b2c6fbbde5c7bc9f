package audit

import (
	"net"
	"sync"
	"time"
)

// The time for which refusals of unknown callers are counted together, and the maximum number of counts kept for it.
const (
	together  = time.Second
	mostNamed = 1000
)

// refusals counts the refused requests of unidentified callers, since any client can make any number of them. Of those
// with the same address and status, the first one has a line at once, and all others of the next second have one line
// together. If there are too many addresses, those beyond the bound share lines without an address.
type refusals struct {
	mu   sync.Mutex
	more map[refusal]*Entry // nil values for those with one line so far; a nil map while nothing is counted
	end  *time.Timer
}

// refusal has the common part of refused requests, which are counted together.
type refusal struct {
	host   string
	status int
}

// counted reports whether an entry was counted, and so must not be written. After the first entry of a time, it calls
// write later with the entries that stand for several requests.
func (r *refusals) counted(e *Entry, write func(Entry)) bool {
	if e.Result != Refused || e.Principal != "" {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.more == nil {
		r.more = make(map[refusal]*Entry)
		r.end = time.AfterFunc(together, func() { r.flush(write) })
	}
	of := refusal{hostOf(e.From), e.Status}
	shared, known := r.more[of]
	if !known && len(r.more) < mostNamed {
		r.more[of] = nil
		return false
	}
	if !known {
		of.host = ""
		shared = r.more[of]
	}
	if shared == nil {
		first := *e
		if !known {
			first.From = ""
		}
		shared = &first
		r.more[of] = shared
	}
	shared.Time = e.Time // of the last one
	shared.Count++
	return true
}

// flush writes the entries that stand for several requests. When it returns, an earlier call has written its entries.
func (r *refusals) flush(write func(Entry)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	counted := r.more
	r.more = nil
	if r.end != nil {
		r.end.Stop()
	}
	for _, e := range counted {
		if e == nil {
			continue
		}
		if e.Count == 1 {
			e.Count = 0
		}
		write(*e)
	}
}

// hostOf returns an address without its port.
func hostOf(from string) string {
	if host, _, err := net.SplitHostPort(from); err == nil {
		return host
	}
	return from
}
