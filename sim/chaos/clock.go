package chaos

import (
	"context"
	"encoding/binary"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"
)

// ClockVariable is the variable of the environment that names the file from which a program with a settable clock reads
// how far its wall clock is ahead: eight bytes, a number of nanoseconds in the machine's order.
const ClockVariable = "CHAOS_CLOCK"

// clock is the wall clock of some replicas. The monotonic clock is not changed.
type clock struct {
	file string

	lock sync.Mutex
	by   time.Duration
	up   time.Duration // by all steps ahead, each less than forgotten after the one before
	last time.Time     // when it was set ahead
}

// forgotten is a time after a step ahead. A replica has compared its clock with the store's then, whatever faults there
// are.
const forgotten = time.Minute

// newClock makes a clock that shows the true time.
func newClock(folder string, index int) (*clock, error) {
	c := &clock{file: filepath.Join(folder, "clock-"+strconv.Itoa(index))}
	return c, c.step(0)
}

// step sets the clock ahead by a time, which may be negative.
func (c *clock) step(by time.Duration) error {
	c.lock.Lock()
	defer c.lock.Unlock()
	c.by += by
	if up := c.jumped(); by > 0 {
		c.up, c.last = up+by, time.Now()
	}
	file, err := os.OpenFile(c.file, os.O_CREATE|os.O_WRONLY, 0o600) // programs have mapped it, so it is not replaced
	if err != nil {
		return err
	}
	defer file.Close() //nolint:errcheck // the time shows at once
	_, err = file.Write(binary.NativeEndian.AppendUint64(nil, uint64(c.by)))
	return err
}

// ahead returns how far the clock is ahead of the true time.
func (c *clock) ahead() time.Duration {
	c.lock.Lock()
	defer c.lock.Unlock()
	return c.by
}

// younger returns how much later than it came a request may seem to have come to a replica with this clock: until the
// replica compares its clock with the store's again, it can't tell a step ahead from a suspension.
func (c *clock) younger() time.Duration {
	c.lock.Lock()
	defer c.lock.Unlock()
	return c.jumped()
}

func (c *clock) jumped() time.Duration {
	if time.Since(c.last) > forgotten {
		return 0
	}
	return c.up
}

// shows reports whether a replica's answers tell the time that its clock should show, or there is none.
func (r *replica) shows(ctx context.Context) bool {
	before := time.Now().Add(r.clock.ahead())
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.address+"/healthz", http.NoBody)
	if err != nil {
		panic(err) // can't happen: the parts are ours
	}
	response, err := client.Do(request)
	if err != nil {
		return true
	}
	_ = response.Body.Close()
	told, err := http.ParseTime(response.Header.Get("Date"))
	after := time.Now().Add(r.clock.ahead())
	return err == nil && told.After(before.Add(-2*time.Second)) && told.Before(after.Add(time.Second))
}
