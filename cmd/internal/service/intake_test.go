package service

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/carillon-scheduler/carillon/cmd/internal/cli"
)

// TestIntakeOptions: a faulty option for queues and topics is reported by name, with its fault.
func TestIntakeOptions(t *testing.T) {
	for name, c := range map[string]struct {
		settings map[string]string
		says     string // empty if nothing is wrong
	}{
		"two tenants":  {map[string]string{"rabbitmq-url": "amqp://127.0.0.1:1", "submit-rabbitmq-queue": "acme=a, b"}, ""},
		"a topic":      {map[string]string{"kafka-brokers": "127.0.0.1:1", "submit-kafka-topic": "acme=a"}, ""},
		"no broker":    {map[string]string{"submit-rabbitmq-queue": "a"}, "--rabbitmq-url"},
		"no cluster":   {map[string]string{"submit-kafka-topic": "a"}, "--kafka-brokers"},
		"no queue":     {map[string]string{"submit-rabbitmq-queue": "acme="}, "--submit-rabbitmq-queue"},
		"wrong tenant": {map[string]string{"submit-kafka-topic": "a b=c"}, "--submit-kafka-topic"},
		"twice":        {map[string]string{"submit-rabbitmq-queue": "a=q,b=q"}, "q twice"},
	} {
		t.Run(name, func(t *testing.T) {
			c.settings["store"] = "memory:"
			options, err := Configure(c.settings)
			var s *Service
			if err == nil {
				s, err = New(t.Context(), options, slog.New(slog.DiscardHandler))
			}
			if s != nil {
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			}
			if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("the error is %v; want %q in it", err, c.says)
			}
			if _, usage := errors.AsType[cli.UsageError](err); err != nil && !usage {
				t.Errorf("%v is no usage error", err)
			}
		})
	}
}
