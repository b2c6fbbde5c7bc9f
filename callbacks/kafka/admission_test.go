package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/carillon-scheduler/carillon/callbacks"
)

// A record is not put behind others whose attempts end later: the client would keep it as long as them, and send it
// when its own attempt is over. It costs no attempt, and it is taken when they are done.
func TestLessTimeThanOthers(t *testing.T) {
	ctx, c := limited(t), newCluster(t)
	sender := c.sender()
	if err := deliver(ctx, sender, delivery(data(``))); err != nil {
		t.Fatal(err)
	}
	first, resume := c.hang()
	defer resume()
	results := make(chan error, 1)
	go func() { results <- sender.Send(ctx, delivery(data(`"partition":0`))) }()
	select {
	case <-first:
	case <-ctx.Done():
		t.Fatal("nothing came")
	}
	late := delivery(data(`"partition":0`))
	short, cancel := context.WithTimeout(ctx, patience/2)
	defer cancel()
	err := sender.Send(short, late)
	failure, ok := errors.AsType[*callbacks.Failure](err)
	if !ok || !failure.Unavailable || failure.After <= 0 || !strings.Contains(err.Error(), "nothing was sent") {
		t.Fatalf("Send = %v", err)
	}
	if short.Err() != nil {
		t.Error("it was answered when its time was over")
	}
	resume()
	if err := <-results; err != nil {
		t.Fatal(err)
	}
	if c.has(late.ID) {
		t.Error("it came without having been sent")
	}
	again, cancel := context.WithTimeout(ctx, patience/2)
	defer cancel()
	if err := deliver(again, sender, late); err != nil {
		t.Fatal(err)
	}
	c.record(ctx, t, late.ID)
}

// Attempts within a moment of each other, as the dispatcher makes them, go together in whatever order they come.
func TestAboutTheSameTime(t *testing.T) {
	ctx, c := limited(t), newCluster(t)
	sender := c.sender()
	if err := deliver(ctx, sender, delivery(data(``))); err != nil {
		t.Fatal(err)
	}
	first, resume := c.hang()
	defer resume()
	end := time.Now().Add(patience / 2)
	results := make(chan error, 2)
	send := func(deadline time.Time) {
		attempt, cancel := context.WithDeadline(ctx, deadline)
		defer cancel()
		results <- sender.Send(attempt, delivery(data(`"partition":0`)))
	}
	go send(end)
	select {
	case <-first:
	case <-ctx.Done():
		t.Fatal("nothing came")
	}
	go send(end.Add(-100 * time.Millisecond))
	resume()
	for range 2 {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
}

// Closing ends attempts that wait for an answer, at no cost.
func TestCloseWhileSending(t *testing.T) {
	ctx, c := limited(t), newCluster(t)
	sender := c.sender()
	if err := deliver(ctx, sender, delivery(data(``))); err != nil {
		t.Fatal(err)
	}
	first, resume := c.hang()
	defer resume()
	const attempts = 20
	results := make(chan error, attempts)
	for range attempts {
		go func() { results <- sender.Send(ctx, delivery(data(`"partition":0`))) }()
	}
	select {
	case <-first:
	case <-ctx.Done():
		t.Fatal("nothing came")
	}
	if err := sender.Close(); err != nil {
		t.Error(err)
	}
	for range attempts {
		err := <-results
		if failure, ok := errors.AsType[*callbacks.Failure](err); !ok || !failure.Unavailable {
			t.Errorf("Send = %v", err)
		}
	}
	if ctx.Err() != nil {
		t.Error("they waited for their contexts")
	}
}

// Close joins the goroutines that look up topics, also when no attempt waits for them any more.
func TestCloseJoinsAll(t *testing.T) {
	ctx, c := limited(t), newCluster(t)
	sender := c.sender()
	if err := deliver(ctx, sender, delivery(data(``))); err != nil {
		t.Fatal(err)
	}
	const n = 200 // enough that they do not all end by themselves as soon as the connections are gone
	gate := make(chan struct{})
	defer close(gate)
	first, mend := c.intercept(kmsg.Metadata, func() (kmsg.Response, error, bool) {
		c.kafka.SleepControl(func() { <-gate })
		return nil, nil, false
	})
	defer mend()
	attempt, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			if sender.Send(attempt, delivery(data(fmt.Sprintf(`"topic":"t%d"`, i)))) == nil {
				t.Error("success was told of a topic that no broker was asked for")
			}
		})
	}
	<-first
	for len(ofPackage()) < 2*n && ctx.Err() == nil { // each attempt's, and its look-up's
		time.Sleep(10 * time.Millisecond)
	}
	cancel()
	all.Wait()
	if err := sender.Close(); err != nil {
		t.Error(err)
	}
	for _, stack := range ofPackage() {
		t.Errorf("after Close there still is\n%s", stack)
	}
}

var stacks = make([]byte, 16<<20)

// ofPackage returns the stacks of the goroutines that are in a function of the package under test. The client's own are
// not among them: one that reads from a connection may call a hook a moment after Close.
func ofPackage() (found []string) {
	for _, stack := range strings.Split(string(stacks[:runtime.Stack(stacks, true)]), "\n\n") {
		frames, by, _ := strings.Cut(stack, "\ncreated by ")
		if strings.Contains(frames, "carillon/callbacks/kafka.") && !strings.HasPrefix(by, "github.com/twmb/franz-go/") {
			found = append(found, stack)
		}
	}
	return found
}
