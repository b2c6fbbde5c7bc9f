package dispatcher_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/dispatcher"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/secrets"
	"github.com/carillon-scheduler/carillon/store/memory"
)

// vault returns the secrets of an empty store. The receiver resolves the references to them in the jobs' data.
func (b *bench) vault() *secrets.Secrets {
	b.Helper()
	keys, err := secrets.NewKeyring(bytes.Repeat([]byte{7}, 32))
	if err != nil {
		b.Fatal(err)
	}
	vault := secrets.New(memory.New(), keys, slog.New(slog.DiscardHandler))
	b.receiver.answers(func(ctx context.Context, d callbacks.Delivery) error {
		var header callbacks.Text
		if err := json.Unmarshal(d.Data, &header); err != nil {
			return err
		}
		value, _, err := d.Join(ctx, b.receiver, header)
		if err != nil {
			return err
		}
		signature, err := d.Signature(ctx, []byte(value))
		if err == nil && header.Refers() && (value != "Bearer s3cret" || signature == "") {
			err = fmt.Errorf("it is sent with %q, signed by %q", value, signature)
		}
		return err
	})
	return vault
}

// A callback whose secret is missing is retried by its job's policy, and its error names the reason. It does not vanish:
// it is sent once the secret exists, or becomes a dead letter. It affects neither its destination nor other callbacks.
func TestMissingSecret(t *testing.T) {
	bubble(t, func(b *bench) {
		vault := b.vault()
		refers := func(j *job.Job) {
			j.Callback.Data = []byte(`{"secret":"token","prefix":"Bearer "}`)
			j.Options.Signing = "partner"
			j.Options.Retry = job.Retry{Initial: job.Duration(10 * time.Second), Max: job.Duration(time.Minute), MaxAttempts: 50}
		}
		var waiting []job.Job
		for i := range 30 {
			waiting = append(waiting, b.submit(fmt.Sprintf("waits-%d", i), refers, 0))
		}
		b.submit("once", func(j *job.Job) { refers(j); j.Options.Retry.MaxAttempts = 1 }, 0)
		d, _ := b.replica(func(c *dispatcher.Config) { c.Secrets = vault })
		time.Sleep(5 * time.Minute)
		for _, state := range d.Destinations() {
			if !state.Open.IsZero() || state.Failures != 0 {
				b.Errorf("the destination is blamed: %+v", state)
			}
		}
		b.submit("plain", nil, 0)
		time.Sleep(2 * time.Second)
		if n := len(b.receiver.of("plain")); n != 1 {
			b.Errorf("a callback that needs no secret was sent %d times", n)
		}
		pending := b.pending(waiting[0])
		if len(pending) != 1 || pending[0].Attempt < 5 || !strings.Contains(pending[0].LastError, `there is no secret "token"`) {
			b.Errorf("what waits for its secret is %+v", pending)
		}
		if dead := b.dead(); len(dead) != 1 || dead[0].Name.Key != "once" || !strings.Contains(dead[0].LastError, "no secret") {
			b.Errorf("dead letters: %+v", dead)
		}
		if _, _, err := vault.Put(t.Context(), job.DefaultTenant, "token", secrets.Value{Text: "s3cret"}, time.Now()); err != nil {
			b.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		if pending := b.pending(waiting[0]); len(pending) != 1 || !strings.Contains(pending[0].LastError, `there is no signing secret "partner"`) {
			b.Errorf("what waits for its signing secret is %+v", pending)
		}
		if _, _, err := vault.CreateSigning(t.Context(), job.DefaultTenant, "partner", secrets.NewSigning{}, time.Now()); err != nil {
			b.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		for _, j := range waiting {
			if status := b.status(j); len(b.pending(j)) != 0 || status.Failed != 0 {
				b.Errorf("%s was not delivered: %+v", j.Key, status)
			}
		}
		if dead := b.dead(); len(dead) != 1 {
			b.Errorf("dead letters: %+v", dead)
		}
	})
}
