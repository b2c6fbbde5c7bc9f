package chaos

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// replica is a replica, through all its processes.
type replica struct {
	*world
	index   int
	address string // where it serves, the same in each life
	store   string
	relay   *relay // nil without a network
	proxy   *http.Server
	through string // the proxy's address
	log     string // a file
	clock   *clock

	// stopping is held by the fault that has stopped or ended the process, until it goes on or is started again.
	stopping sync.Mutex

	lock    sync.Mutex
	command *exec.Cmd
	exited  chan struct{}
	meant   bool // its end
	cuts    []cut
}

// newReplica makes a replica and starts it.
func (w *world) newReplica(ctx context.Context, index int) (*replica, error) {
	r := &replica{world: w, index: index, store: w.o.Store}
	r.log = filepath.Join(w.folder, fmt.Sprintf("replica-%d.log", index))
	var err error
	// On one machine, they have its clock.
	if index > 0 && w.target == "" {
		r.clock = w.replicas[0].clock
	} else if r.clock, err = newClock(w.folder, index); err != nil {
		return nil, err
	}
	if err := r.clock.step(w.plan.Skew[index]); err != nil {
		return nil, err
	}
	if w.target != "" {
		if r.relay, err = newRelay(ctx, w.target, w.plan.Seed+uint64(index)); err != nil { //nolint:gosec // small
			return nil, err
		}
		r.store = strings.Replace(w.o.Store, w.target, r.relay.address(), 1)
	}
	if err := r.receive(ctx); err != nil {
		return nil, err
	}
	free, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r.address = free.Addr().String()
	if err := free.Close(); err != nil {
		return nil, err
	}
	return r, r.start(ctx)
}

// start starts the replica's process.
func (r *replica) start(ctx context.Context) error {
	log, err := os.OpenFile(r.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	// Not by the context: at its end, the process is killed by [replica.kill], and waited for.
	c := exec.Command(r.o.Program, "serve", "--listen="+r.address, "--store="+r.store, //nolint:gosec,noctx // see above
		"--lease="+Lease.String(), "--callback-timeout="+callbackTimeout.String(), "--tick=250ms",
		"--concurrency="+strconv.Itoa(slots), "--log-format=json", "--store-wait=10m",
		"--shutdown-timeout="+shutdown.String(), "--history="+(r.o.Length+time.Hour).String())
	c.Env = append(os.Environ(), "HTTP_PROXY=http://"+r.through, "NO_PROXY=", ClockVariable+"="+r.clock.file)
	c.Stdout, c.Stderr = log, log
	if err := c.Start(); err != nil {
		return err
	}
	r.lock.Lock()
	defer r.lock.Unlock()
	exited := make(chan struct{})
	r.command, r.exited, r.meant = c, exited, false
	go func() {
		err := c.Wait()
		_ = log.Close()
		r.lock.Lock()
		meant := r.meant
		r.lock.Unlock()
		close(exited)
		if !meant && ctx.Err() == nil {
			r.fault("replica %d ended by itself: %v; its log is %s", r.index, err, r.log)
		}
	}()
	return nil
}

// kill kills the replica's process, and waits until it has ended.
func (r *replica) kill() {
	r.lock.Lock()
	r.meant = true
	command, exited := r.command, r.exited
	r.lock.Unlock()
	if command != nil {
		_ = command.Process.Kill() // it may have ended already
		<-exited
	}
}

// stop asks the replica's process to end, and waits until it has ended.
func (r *replica) stop() {
	r.lock.Lock()
	r.meant = true
	command, exited := r.command, r.exited
	r.lock.Unlock()
	_ = command.Process.Signal(syscall.SIGTERM) // it may have ended already
	select {
	case <-exited:
	case <-time.After(shutdown + within):
		r.fault("replica %d was asked to end, and does not", r.index)
		r.kill()
	}
}

// signal sends a signal to the replica's process.
func (r *replica) signal(s syscall.Signal) {
	r.lock.Lock()
	defer r.lock.Unlock()
	_ = r.command.Process.Signal(s)
}

// close ends all that belongs to the replica.
func (r *replica) close() {
	r.kill()
	_ = r.proxy.Close()
	if r.relay != nil {
		r.relay.close()
	}
}

// fill writes a file until the disk is full, and returns a function that removes it.
func fill(folder string) (remove func() error, err error) {
	file, err := os.CreateTemp(folder, "filler-")
	if err != nil {
		return nil, err
	}
	for size := 1 << 20; size > 0 && err == nil; {
		if _, err = file.Write(make([]byte, size)); errors.Is(err, syscall.ENOSPC) {
			size, err = size/2, nil
		}
	}
	return func() error { return os.Remove(file.Name()) }, errors.Join(err, file.Close())
}
