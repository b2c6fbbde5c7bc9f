package callbacks_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/job"
)

// textMessages sends callbacks of type "sms". Errors that it can't classify are retried by the job's policy.
type textMessages struct {
	send func(ctx context.Context, id, to, text string) error
}

// message is the callback data of a job: {"to": "+33123456789", "payload": "Your table is ready."}.
type message struct {
	To      string `json:"to" validate:"required"`
	Payload string `json:"payload"`
}

var (
	errNoSuchNumber = errors.New("no such number")
	errTooMany      = errors.New("too many messages")
)

func (*textMessages) Type() string { return "sms" }

// Destination has one limit and one circuit for all messages, since all go through one gateway.
func (*textMessages) Destination([]byte) string { return "gateway" }

// Validate refuses a job whose data lack a number, when it is submitted.
func (*textMessages) Validate(data []byte) error {
	_, err := job.Parse[message](data)
	return err
}

// Send makes one attempt. The delivery's id is the same for each, so that the gateway can drop duplicates.
func (m *textMessages) Send(ctx context.Context, d callbacks.Delivery) error {
	data, err := job.Parse[message](d.Data)
	if err != nil {
		return callbacks.Permanent(err)
	}
	switch err := m.send(ctx, d.ID.String(), data.To, data.Payload); {
	case errors.Is(err, errNoSuchNumber):
		return callbacks.Permanent(err) // to the dead letters, at once
	case errors.Is(err, errTooMany):
		return callbacks.RetryAfter(err, time.Minute)
	default:
		return err // nil is delivered; any other error is retried with backoff
	}
}

// A callback type of your own.
func ExampleSender() {
	gateway := func(_ context.Context, _, to, text string) error {
		fmt.Println(to, text)
		return nil
	}
	registry := callbacks.NewRegistry(&textMessages{send: gateway})
	fmt.Println(registry.Types())

	sender, _ := registry.Sender("sms")
	fmt.Println(sender.Validate([]byte(`{"payload": "Your table is ready."}`)))
	err := sender.Send(context.Background(), callbacks.Delivery{
		Data: []byte(`{"to": "+33123456789", "payload": "Your table is ready."}`),
	})
	fmt.Println(err)
	// Output:
	// [sms]
	// /to: is required
	// +33123456789 Your table is ready.
	// <nil>
}
