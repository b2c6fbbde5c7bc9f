package rabbitmq_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/callbacks/rabbitmq"
)

// large is a secret of 8 KiB for every name.
type large struct{}

func (large) Secret(context.Context, string, string, string) (string, error) {
	return strings.Repeat("s", 8<<10), nil
}

func (large) Sign(context.Context, string, string, string, time.Time, []byte) (string, error) {
	return "", nil
}

// Headers that fit only without their secrets are refused: the broker would close the connection of all others.
func TestSecretsThatAreTooLargeTogether(t *testing.T) {
	sender, err := rabbitmq.New(rabbitmq.Options{URL: "amqp://" + unused(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer sender.Close()
	for n, permanent := range map[int]bool{1: false, 4: false, 5: true, 200: true} {
		var headers []string
		for i := range n {
			headers = append(headers, fmt.Sprintf(`"h%d":{"secret":"a"}`, i))
		}
		d := callbacks.Delivery{Data: []byte(`{"queue":"q","headers":{` + strings.Join(headers, ",") + `}}`), Secrets: large{}}
		if err := sender.Validate(d.Data); err != nil {
			t.Errorf("%d headers: %v", n, err)
		}
		err := sender.Send(t.Context(), d)
		failure, ok := errors.AsType[*callbacks.Failure](err)
		if !ok || failure.Permanent != permanent || failure.Unavailable == permanent {
			t.Errorf("%d headers: %v", n, err)
		}
	}
}
