//go:build services

package rabbitmq_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/callbacks/rabbitmq"
	"github.com/carillon-scheduler/carillon/job"
)

// patience turns a hanging test into a failing one.
const patience = 10 * time.Minute

func limited(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// The whole message, as the documentation for consumers describes it.
func TestMessage(t *testing.T) {
	ctx, b, sender := limited(t), newBroker(t), newSender(t, rabbitmq.Options{})
	for _, test := range []struct {
		name    string
		members string // beside queue and payload
		part    *job.Part
		mode    uint8
		headers amqp.Table
		event   bool // in binary mode; "" stands for an attribute that varies
	}{
		{"defaults", ``, nil, amqp.Persistent, nil, false},
		{"transient", `,"persistent":false`, nil, amqp.Transient, nil, false},
		{
			"event", `,"headers":{"cloudEvents_type":"mine","cloudEvents_subject":"mine","cloudEvents_datacontenttype":"mine"}`,
			&job.Part{Step: 4}, amqp.Persistent,
			amqp.Table{
				"carillon-step": int64(4), "cloudEvents_specversion": "1.0", "cloudEvents_id": "", "cloudEvents_source": "",
				"cloudEvents_type": "carillon.occurrence", "cloudEvents_time": "2026-12-24T14:00:00.250Z",
				"cloudEvents_carillonstep": int64(4), "cloudEvents_subject": "mine",
			},
			true,
		},
		{
			"step of a sequence", ``, &job.Part{Step: 4, Subscriber: `{"name":"Zoë 1%"}`}, amqp.Persistent,
			amqp.Table{"carillon-step": int64(4), "carillon-subscriber": `{"name":"Zoë 1%"}`}, false,
		},
		{
			"headers",
			`,"headers":{"s":"gr\u00fc\u00dfe","empty":"","t":true,"f":false,"n":-1,"max":9223372036854775807,"min":-9223372036854775808,` +
				`"d":1.5,"e":1e3,"whole":1.0}`,
			nil, amqp.Persistent,
			amqp.Table{
				"s": "grüße", "empty": "", "t": true, "f": false, "n": int64(-1), "max": int64(1<<63 - 1), "min": int64(-1 << 63),
				"d": 1.5, "e": 1000.0, "whole": 1.0,
			},
			false,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := delivery(`{"queue":"` + b.name + `","payload":{"a": 1}` + test.members + `}`)
			d.Part = test.part
			if test.event {
				d.Envelope = job.EnvelopeBinary
			}
			if err := sender.Validate(d.Data); err != nil {
				t.Fatal(err)
			}
			if err := deliver(ctx, sender, d); err != nil {
				t.Fatal(err)
			}
			got := b.message(ctx, t, d.ID)
			want := amqp.Table{"carillon-key": d.Name.Key, "carillon-timestamp": "2026-12-24T14:00:00.250Z", "carillon-attempt": int64(3)}
			maps.Copy(want, test.headers)
			for _, varies := range []string{"cloudEvents_id", "cloudEvents_source"} { // which the suite looks at
				if _, there := got.Headers[varies]; there {
					got.Headers[varies] = ""
				}
			}
			if !maps.Equal(got.Headers, want) {
				t.Errorf("headers %#v, want %#v", got.Headers, want)
			}
			if got.DeliveryMode != test.mode || got.ContentType != "application/json" || got.AppId != "carillon" || string(got.Body) != `{"a": 1}` {
				t.Errorf("the message is %+v", got)
			}
		})
	}
}

// Messages keep coming while the broker goes away in every manner; each arrives, and none is charged an attempt.
func TestOutages(t *testing.T) {
	for _, outage := range []struct {
		name   string
		happen func(t *testing.T, r *relay)
	}{
		{"stop and start", func(t *testing.T, _ *relay) { ctl(t, "stop"); ctl(t, "start") }},
		{"kill and start", func(t *testing.T, _ *relay) { ctl(t, "kill"); ctl(t, "start") }},
		{"block and unblock", func(t *testing.T, _ *relay) { ctl(t, "block"); ctl(t, "unblock") }},
		{"lost connection", func(_ *testing.T, r *relay) { r.cut() }},
		{"lost confirms", func(_ *testing.T, r *relay) {
			r.down.Lock()
			r.cut()
			r.down.Unlock()
		}},
	} {
		t.Run(outage.name, func(t *testing.T) {
			ctx, b, r := limited(t), newBroker(t), newRelay(t, nil)
			sender := newSender(t, rabbitmq.Options{URL: r.URL})
			over := make(chan struct{})
			var all sync.WaitGroup
			var mu sync.Mutex
			var sent []job.ID
			for range 50 {
				all.Go(func() {
					for goesOn := true; goesOn; {
						select {
						case <-over:
							goesOn = false // and one more, which finds the broker back
						default:
						}
						d := delivery(`{"queue":"` + b.name + `","payload":1}`)
						if err := deliver(ctx, sender, d); err != nil {
							t.Errorf("an attempt was charged or never succeeded: %v", err)
							return
						}
						mu.Lock()
						sent = append(sent, d.ID)
						mu.Unlock()
					}
				})
			}
			for len(snapshot(&mu, &sent)) < 100 && !t.Failed() { // it is under way
				time.Sleep(time.Millisecond)
			}
			outage.happen(t, r)
			close(over)
			all.Wait()
			for _, id := range sent {
				b.message(ctx, t, id)
			}
		})
	}
}

func snapshot(mu *sync.Mutex, ids *[]job.ID) []job.ID {
	mu.Lock()
	defer mu.Unlock()
	return *ids
}

// An exchange that was there a moment ago costs the broker's end of the channel, but only its own messages an attempt.
func TestDeletedExchangeHarmsNobodyElse(t *testing.T) {
	ctx, b := limited(t), newBroker(t)
	sender := newSender(t, rabbitmq.Options{Channels: 1})
	for round := range 10 {
		name := fmt.Sprintf("%s-%d", b.name, round)
		b.do(func(ch *amqp.Channel) error {
			return errors.Join(
				ch.ExchangeDeclare(name, amqp.ExchangeFanout, true, false, false, false, nil),
				ch.QueueBind(b.name, "", name, false, nil),
			)
		})
		toExchange := `{"exchange":"` + name + `","payload":1}`
		if err := deliver(ctx, sender, delivery(toExchange)); err != nil {
			t.Fatal(err)
		}
		b.do(func(ch *amqp.Channel) error { return ch.ExchangeDelete(name, false, false) })

		var all sync.WaitGroup
		var sent [100]callbacks.Delivery
		for i := range sent {
			sent[i] = delivery(`{"queue":"` + b.name + `","payload":1}`)
			all.Go(func() {
				if err := deliver(ctx, sender, sent[i]); err != nil {
					t.Errorf("another message was charged: %v", err)
				}
			})
		}
		all.Go(func() {
			err := deliver(ctx, sender, delivery(toExchange))
			if failure, ok := errors.AsType[*callbacks.Failure](err); err == nil || ok || !strings.Contains(err.Error(), name) {
				t.Errorf("to an exchange that is gone: %v %+v", err, failure)
			}
		})
		all.Wait()
		for _, d := range sent {
			b.message(ctx, t, d.ID)
		}
	}
}

// Many messages that come back, among many that do not: each attempt gets its own answer.
func TestReturnsAreTold(t *testing.T) {
	ctx, b := limited(t), newBroker(t)
	sender := newSender(t, rabbitmq.Options{Channels: 1, Window: 50})
	if err := deliver(ctx, sender, delivery(`{"queue":"`+b.name+`","payload":1}`)); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for i := range 200 {
		all.Go(func() {
			for j := range 10 {
				queue, exists := b.name, (i+j)%2 == 0
				if !exists {
					queue = fmt.Sprintf("carillon-nowhere-%d", i)
				}
				err := sender.Send(ctx, delivery(`{"queue":"`+queue+`","payload":1}`))
				if exists && err != nil {
					t.Errorf("to the queue: %v", err)
				}
				if !exists && (err == nil || !strings.Contains(err.Error(), strconv.Quote(queue))) {
					t.Errorf("to no queue %s: %v", queue, err)
				}
			}
		})
	}
	all.Wait()
}

// While an attempt waits for its confirm, another at the same delivery is not published, on any account.
func TestNoSecondAttemptBeforeTheConfirm(t *testing.T) {
	ctx, b, r := limited(t), newBroker(t), newRelay(t, nil)
	sender := newSender(t, rabbitmq.Options{URL: r.URL})
	if err := deliver(ctx, sender, delivery(`{"queue":"`+b.name+`","payload":1}`)); err != nil {
		t.Fatal(err)
	}
	r.down.Lock() // confirms get stuck
	d := delivery(`{"queue":"` + b.name + `","payload":1}`)
	first, cancel := context.WithCancel(ctx)
	result := make(chan error, 1)
	go func() { result <- sender.Send(first, d) }()
	b.message(ctx, t, d.ID) // it has been published
	cancel()
	err := <-result
	if failure, ok := errors.AsType[*callbacks.Failure](err); err == nil || ok || !errors.Is(err, context.Canceled) {
		t.Errorf("an attempt whose confirm is late: %v %+v", err, failure)
	}
	err = sender.Send(ctx, d)
	if failure, ok := errors.AsType[*callbacks.Failure](err); !ok || !failure.Unavailable || !strings.Contains(err.Error(), "earlier attempt") {
		t.Errorf("a second attempt before the confirm: %v", err)
	}
	r.down.Unlock()
	if err := deliver(ctx, sender, d); err != nil {
		t.Errorf("an attempt after the late confirm: %v", err)
	}
}

// A broker that reads no more, without a word, must not keep an attempt beyond its context, nor the sender from
// closing.
func TestBrokerThatReadsNoMore(t *testing.T) {
	ctx, b, r := limited(t), newBroker(t), newRelay(t, nil)
	sender := newSender(t, rabbitmq.Options{URL: r.URL})
	if err := deliver(ctx, sender, delivery(`{"queue":"`+b.name+`","payload":1}`)); err != nil {
		t.Fatal(err)
	}
	large := `{"queue":"` + b.name + `","payload":"` + strings.Repeat("x", 1<<20) + `"}`
	attempt, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancel()
	r.up.Lock()
	var all sync.WaitGroup
	var unsent atomic.Int64
	for range 50 { // more than the buffers on the way hold
		all.Go(func() {
			err := sender.Send(attempt, delivery(large))
			if err == nil {
				t.Error("success was told of a message that nobody has read")
			}
			if failure, ok := errors.AsType[*callbacks.Failure](err); ok && failure.Unavailable && strings.Contains(err.Error(), "nothing was sent") {
				unsent.Add(1)
			}
		})
	}
	ended := make(chan struct{})
	go func() {
		all.Wait()
		_ = sender.Close()
		close(ended)
	}()
	select {
	case <-ended:
	case <-ctx.Done():
		t.Error("an attempt or Close hangs")
	}
	if n := unsent.Load(); n < 25 {
		t.Errorf("%d of 50 attempts know that nothing was sent; the others' messages were taken without room for them", n)
	}
	r.up.Unlock()
}

// Close joins all goroutines of the sender, also those that look up an exchange or wait for a confirm after their
// attempts have ended.
func TestCloseJoinsAll(t *testing.T) {
	ctx, b, r := limited(t), newBroker(t), newRelay(t, nil)
	sender := newSender(t, rabbitmq.Options{URL: r.URL})
	toQueue := `{"queue":"` + b.name + `","payload":1}`
	if err := deliver(ctx, sender, delivery(toQueue)); err != nil {
		t.Fatal(err)
	}
	r.down.Lock() // no confirm, and no answer about an exchange
	attempt, cancel := context.WithCancel(ctx)
	defer cancel()
	var all sync.WaitGroup
	const n = 900 // enough that they do not all end by themselves as soon as the connection is gone
	for i := range n {
		all.Go(func() {
			data := toQueue
			if i%2 == 0 {
				data = fmt.Sprintf(`{"exchange":"amq.%d","routingKey":"a","payload":1}`, i)
			}
			if err := sender.Send(attempt, delivery(data)); err == nil {
				t.Error("success was told without an answer of the broker")
			}
		})
	}
	buffer := make([]byte, 16<<20)
	for waiting := 0; waiting < n && ctx.Err() == nil; { // for an exchange or for a confirm
		waiting = 0
		for _, stack := range ofPackage(buffer) {
			_, top, _ := strings.Cut(stack, "\n")
			if strings.Contains(stack, ".(*exchanges).lookUp(") || strings.HasPrefix(top, thePackage+"(*session).send(") {
				waiting++
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	cancel()
	all.Wait()
	for len(ofPackage(buffer)) < n { // some have just begun
		if ctx.Err() != nil {
			t.Fatal("of those that wait for the broker, some have ended before Close")
		}
		time.Sleep(10 * time.Millisecond)
	}
	if err := sender.Close(); err != nil {
		t.Error(err)
	}
	for _, stack := range ofPackage(buffer) {
		t.Errorf("after Close there still is\n%s", stack)
	}
	r.down.Unlock()
}

const thePackage = "github.com/carillon-scheduler/carillon/callbacks/rabbitmq."

// ofPackage returns the stacks of the goroutines that are in a function of the package under test.
func ofPackage(buffer []byte) (stacks []string) {
	all := strings.Split(string(buffer[:runtime.Stack(buffer, true)]), "\n\n")
	for _, stack := range all {
		frames, _, _ := strings.Cut(stack, "\ncreated by ")
		if strings.Contains(frames, thePackage) {
			stacks = append(stacks, stack)
		}
	}
	return stacks
}

// A message that could not be written before its attempt ended is not written when the broker reads again.
func TestNothingIsWrittenLate(t *testing.T) {
	ctx, b, r := limited(t), newBroker(t), newRelay(t, nil)
	sender := newSender(t, rabbitmq.Options{URL: r.URL, Channels: 1})
	message := `{"queue":"` + b.name + `","payload":1}`
	if err := deliver(ctx, sender, delivery(message)); err != nil {
		t.Fatal(err)
	}
	late := delivery(`{"queue":"` + b.name + `","payload":"` + strings.Repeat("x", 15<<20) + `"}`) // more than the buffers on the way hold
	r.up.Lock()
	attempt, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	if err := sender.Send(attempt, late); err == nil {
		t.Error("success was told of a message that nobody has read")
	}
	r.up.Unlock()
	next := delivery(message)
	if err := deliver(ctx, sender, next); err != nil {
		t.Fatal(err)
	}
	b.message(ctx, t, next.ID)
	if _, published := b.take(late.ID); published {
		t.Error("a message was published after its attempt had ended")
	}
}

// Messages of many sizes which are sent at the same time arrive whole, each at its own place.
func TestMessagesOfAllSizes(t *testing.T) {
	ctx, b := limited(t), newBroker(t)
	config, ca := authority(t)
	for name, o := range map[string]rabbitmq.Options{"plain": {Channels: 3}, "TLS": {Channels: 3, URL: newRelay(t, config).URL, CAFile: ca}} {
		t.Run(name, func(t *testing.T) {
			sender := newSender(t, o)
			var all sync.WaitGroup
			var sent [150]callbacks.Delivery
			var payloads [len(sent)]string
			for i := range sent {
				size := []int{0, 10, 1000, 5000, 130_000, 600_000}[i%6] // around the sizes of frames and of buffers
				payloads[i] = strconv.Quote(strings.Repeat(string(rune('a'+i%26)), size))
				sent[i] = delivery(`{"queue":"` + b.name + `","payload":` + payloads[i] + `}`)
				all.Go(func() {
					if err := deliver(ctx, sender, sent[i]); err != nil {
						t.Errorf("%d bytes: %v", size, err)
					}
				})
			}
			all.Wait()
			for i, d := range sent {
				if got := b.message(ctx, t, d.ID); string(got.Body) != payloads[i] {
					t.Errorf("a payload of %d bytes arrived as %d others", len(payloads[i]), len(got.Body))
				}
			}
		})
	}
}

func TestTLS(t *testing.T) {
	ctx, b := limited(t), newBroker(t)
	config, ca := authority(t)
	r := newRelay(t, config)
	d := delivery(`{"queue":"` + b.name + `","payload":1}`)

	if err := deliver(ctx, newSender(t, rabbitmq.Options{URL: r.URL, CAFile: ca}), d); err != nil {
		t.Errorf("with the CA file: %v", err)
	}
	if err := deliver(ctx, newSender(t, rabbitmq.Options{URL: r.URL + "?cacertfile=" + ca}), d); err != nil {
		t.Errorf("with the CA file in the URL: %v", err)
	}
	stranger := newSender(t, rabbitmq.Options{URL: r.URL})
	for {
		err := stranger.Send(ctx, d)
		if failure, ok := errors.AsType[*callbacks.Failure](err); !ok || !failure.Unavailable {
			t.Fatalf("without the CA file: %v", err)
		}
		if strings.Contains(err.Error(), "certificate") {
			break
		}
	}
}

// The broker closes the channel for a message that is too large. Other messages must not fail with it, and no later
// attempt can succeed.
func TestMessageThatIsTooLarge(t *testing.T) {
	ctx, b, sender := limited(t), newBroker(t), newSender(t, rabbitmq.Options{Channels: 1})
	const most = 128 << 20 // no release of RabbitMQ takes more by default
	large := delivery(`{"queue":"` + b.name + `","payload":"` + strings.Repeat("x", most) + `"}`)
	failure, ok := errors.AsType[*callbacks.Failure](deliver(ctx, sender, large))
	if !ok || !failure.Permanent {
		t.Errorf("the failure is %v, want a permanent one", failure)
	}
	if err := deliver(ctx, sender, delivery(`{"queue":"`+b.name+`","payload":1}`)); err != nil {
		t.Errorf("a message after it: %v", err)
	}
}

// A broker that neither reads nor writes, as behind a network that drops everything, is given up by the heartbeat, also
// when a message got stuck on its way there.
func TestBrokerThatFallsSilent(t *testing.T) {
	ctx, b, r := limited(t), newBroker(t), newRelay(t, nil)
	sender := newSender(t, rabbitmq.Options{URL: r.URL, Heartbeat: time.Second})
	if err := deliver(ctx, sender, delivery(`{"queue":"`+b.name+`","payload":1}`)); err != nil {
		t.Fatal(err)
	}
	large := `{"queue":"` + b.name + `","payload":"` + strings.Repeat("x", 1<<20) + `"}`
	r.up.Lock()
	r.down.Lock()
	var all sync.WaitGroup
	for range 50 { // more than the buffers on the way hold
		all.Go(func() {
			err := sender.Send(ctx, delivery(large))
			if failure, ok := errors.AsType[*callbacks.Failure](err); !ok || !failure.Unavailable {
				t.Errorf("its failure is %v", err)
			}
		})
	}
	all.Wait()
	r.up.Unlock()
	r.down.Unlock()
	if err := deliver(ctx, sender, delivery(`{"queue":"`+b.name+`","payload":2}`)); err != nil {
		t.Errorf("after it: %v", err)
	}
}
