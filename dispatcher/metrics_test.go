package dispatcher_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/dispatcher"
	"github.com/carillon-scheduler/carillon/history"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/status"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/instrumented"
)

// measured has the metrics of one replica.
type measured struct {
	*bench
	*prometheus.Registry
}

// measure starts a replica with metrics.
func (b *bench) measure(change func(*dispatcher.Config)) (m measured, d *dispatcher.Dispatcher, stop func()) {
	b.Helper()
	m = measured{b, prometheus.NewRegistry()}
	d, stop = b.replica(func(c *dispatcher.Config) {
		c.Registerer = m.Registry
		if change != nil {
			change(c)
		}
	})
	return m, d, stop
}

// text returns a metric's value by its name and labels: of a histogram, the count and the sum.
func (m measured) text(name string, labels ...string) string {
	m.Helper()
	families, err := m.Gather()
	if err != nil {
		m.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, metric := range family.GetMetric() {
			var values []string
			for _, l := range metric.GetLabel() {
				values = append(values, l.GetValue())
			}
			if strings.Join(values, " ") != strings.Join(labels, " ") {
				continue
			}
			switch {
			case metric.Histogram != nil:
				return fmt.Sprintf("%d of %v", metric.Histogram.GetSampleCount(), metric.Histogram.GetSampleSum())
			case metric.Counter != nil:
				return fmt.Sprint(metric.Counter.GetValue())
			default:
				return fmt.Sprint(metric.Gauge.GetValue())
			}
		}
	}
	return "none"
}

func (m measured) expect(what, want, name string, labels ...string) {
	m.Helper()
	if got := m.text(name, labels...); got != want {
		m.Errorf("%s: %s of %q is %s, want %s", what, name, labels, got, want)
	}
}

// The deviation is exact. It is recorded for first attempts, and only for occurrences with an instant to be late for.
func TestDeviation(t *testing.T) {
	bubble(t, func(b *bench) {
		const name = "carillon_deviation_seconds"
		b.submit("late", nil, 1500*time.Millisecond, 4*time.Second)
		b.submit("early", nil, 7100*time.Millisecond)
		time.Sleep(2 * time.Second)
		m, d, _ := b.measure(func(c *dispatcher.Config) { c.Early = 100 * time.Millisecond })
		synctest.Wait()
		m.expect("one is late", "1 of 0.5", name, "test")
		time.Sleep(1900 * time.Millisecond)
		synctest.Wait()
		m.expect("one is early", "2 of 0.5", name, "test")

		b.receiver.answers(func(_ context.Context, d callbacks.Delivery) error {
			if d.Attempt == 1 {
				return errors.New("not now")
			}
			return nil
		})
		time.Sleep(3200 * time.Millisecond)
		synctest.Wait()
		m.expect("one that fails at first", "3 of 0.5", name, "test")
		time.Sleep(time.Minute)
		m.expect("its retry", "3 of 0.5", name, "test")
		m.expect("its retry", "1", "carillon_deliveries_total", "retried", "test")
		m.expect("all", "3", "carillon_deliveries_total", "delivered", "test")

		// A callback that can't be sent has not been fired.
		b.receiver.answers(func(context.Context, callbacks.Delivery) error {
			return &callbacks.Failure{Err: errors.New("no broker"), Unavailable: true, After: 2 * time.Second}
		})
		j := b.submit("delayed", nil, 0)
		d.Wake(job.DefaultLane, time.Now())
		time.Sleep(time.Second)
		m.expect("one that can't be sent", "3 of 0.5", name, "test")
		m.expect("one that can't be sent", "1", "carillon_deliveries_total", "released", "test")
		b.receiver.answers(nil)
		time.Sleep(5 * time.Minute)
		if got := m.text(name, "test"); !strings.HasPrefix(got, "4 of ") || got == "4 of 0.5" {
			b.Errorf("of one that was sent later, the deviation is %s", got)
		}
		before := m.text(name, "test")
		if err := b.store.Trigger(b.Context(), job.Occurrence{
			ID: job.OccurrenceID(j.Name, "", time.Now(), 0, ""), Name: j.Name, Timestamp: time.Now(), DueAt: time.Now(), Own: &job.Target{Callback: j.Callback},
		}); err != nil {
			b.Fatal(err)
		}
		time.Sleep(time.Minute)
		m.expect("one that was triggered", before, name, "test")
		m.expect("all", "5", "carillon_deliveries_total", "delivered", "test")
	})
}

// Each claim is counted by its outcome and, if it has a sender, by its callback type.
func TestDeliveriesAreCounted(t *testing.T) {
	bubble(t, func(b *bench) {
		b.receiver.answers(func(_ context.Context, d callbacks.Delivery) error {
			time.Sleep(250 * time.Millisecond)
			switch d.Name.Key {
			case "hopeless":
				return callbacks.Permanent(errors.New("no such thing"))
			case "fails":
				return &callbacks.Failure{Err: errors.New("not now"), After: time.Hour}
			case "panics":
				panic("on purpose")
			}
			return nil
		})
		b.submit("fine", nil, time.Second, 1100*time.Millisecond)
		b.submit("hopeless", nil, time.Second)
		b.submit("fails", nil, time.Second)
		b.submit("panics", func(j *job.Job) { j.Options.Retry.MaxAttempts = 1 }, time.Second)
		b.submit("foreign", func(j *job.Job) { j.Callback.Type = "carrier-pigeon" }, time.Second)
		b.submit("overdue", func(j *job.Job) { j.Options.Deadline = job.Duration(time.Millisecond) }, time.Second)
		b.queue.set(func(q *flakyQueue) {
			q.read = func(c *store.Claimed) {
				if c.Name.Key == "overdue" {
					c.Timestamp = c.Timestamp.Add(-time.Minute)
				}
			}
		})
		m, _, _ := b.measure(nil)
		synctest.Wait()
		for _, outcome := range []string{"delivered", "retried", "buried", "released"} {
			m.expect("at first", "0", "carillon_deliveries_total", outcome, "test")
			m.expect("at first", "0", "carillon_deliveries_total", outcome, "other")
		}
		time.Sleep(1500 * time.Millisecond)
		m.expect("in the end", "2", "carillon_deliveries_total", "delivered", "test")
		m.expect("in the end", "2", "carillon_deliveries_total", "buried", "test")
		m.expect("in the end", "1", "carillon_deliveries_total", "retried", "test")
		m.expect("in the end", "1", "carillon_deliveries_total", "released", "other")
		m.expect("in the end", "none", "carillon_deliveries_total", "released", "carrier-pigeon")
		m.expect("in the end", "1", "carillon_missed_total")
		m.expect("in the end", "5 of 1.25", "carillon_delivery_duration_seconds", "test")
		m.expect("what was not sent", "0 of 0", "carillon_delivery_duration_seconds", "other")
		m.expect("in the end", "7", "carillon_claims_total")
		m.expect("in the end", "0", "carillon_reclaims_total")
		m.expect("in the end", "2 of 7", "carillon_claim_batch_size")
	})
}

// Instants that the expander drops are counted as missed too, told to the objectives, and recorded in history, but for
// those that the store had already.
func TestMissedByExpansion(t *testing.T) {
	for _, c := range []struct {
		name string
		left func(missed int) int // the store's answer
	}{
		{"none was left behind", func(int) int { return 0 }},
		{"some were", func(int) int { return 3 }},
		{"all were", func(missed int) int { return missed }},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(b *bench) {
				b.submit("k", crontab("@every 1m"))
				m, _, stop := b.measure(calm)
				time.Sleep(10*time.Minute + time.Second)
				m.expect("while it runs", "0", "carillon_missed_total")
				stop()
				time.Sleep(time.Hour)
				left := 0
				leaves := &flakyQueue{Store: b.store, advance: func(_ context.Context, advances []store.Advance) error {
					for i := range advances {
						if a := &advances[i]; a.Missed > 0 {
							a.Left = c.left(a.Missed)
							left += a.Left
						}
					}
					return nil
				}}
				objective := status.Objective{Within: time.Minute, Target: 0.5}
				var closeHistory func()
				m, _, _ = b.measure(func(config *dispatcher.Config) {
					calm(config)
					config.Store = leaves
					config.Status, _ = status.NewWatch([]status.Objective{objective}, time.Now, config.Registerer)
					closeHistory = b.recording(config)
				})
				time.Sleep(5 * time.Minute)
				missed := b.status(b.submitted("k")).Missed
				if missed < 50 {
					b.Errorf("%d were missed: the test shows nothing", missed)
				}
				told := fmt.Sprint(missed - left)
				m.expect("after an outage", told, "carillon_missed_total")
				m.expect("after an outage", told, "carillon_objective_late_total", objective.String(), "(all)")
				closeHistory()
				recorded := 0
				for _, e := range b.history() {
					if e.Kind == history.Missed {
						n := 1
						_, _ = fmt.Sscanf(e.Error, "%d instants up to this one", &n)
						recorded += n
					}
				}
				if fmt.Sprint(recorded) != told {
					b.Errorf("history has %d missed instants, want %s", recorded, told)
				}
			})
		})
	}
}

// submitted returns a job unchanged.
func (b *bench) submitted(key string) job.Job {
	return b.status(job.Job{Name: job.Name{Tenant: job.DefaultTenant, Key: key}}).Job
}

func TestReclaimsAreCounted(t *testing.T) {
	bubble(t, func(b *bench) {
		b.submit("k", nil, 0, time.Second)
		b.submit("l", nil, 2*time.Minute)
		lost, err := b.store.Claim(b.Context(), store.ClaimParams{Now: time.Now(), Lease: time.Minute, Quotas: []store.Quota{{Lane: job.DefaultLane, Limit: 1}}})
		if err != nil || len(lost.Occurrences) != 1 {
			b.Fatalf("claimed %d, %v", len(lost.Occurrences), err)
		}
		m, _, _ := b.measure(nil)
		time.Sleep(3 * time.Minute)
		m.expect("in the end", "3", "carillon_claims_total")
		m.expect("in the end", "1", "carillon_reclaims_total")
		m.expect("what is no first attempt", "2 of 0", "carillon_deviation_seconds", "test")
	})
}

// A callback is under way until its outcome is written.
func TestInFlight(t *testing.T) {
	bubble(t, func(b *bench) {
		b.receiver.answers(func(context.Context, callbacks.Delivery) error {
			time.Sleep(10 * time.Second)
			return nil
		})
		b.submit("k", nil, time.Second, 1001*time.Millisecond, 2*time.Second, 3*time.Second)
		m, _, _ := b.measure(func(c *dispatcher.Config) {
			c.Concurrency = 3
			alone(c)
		})
		synctest.Wait()
		m.expect("at first", "0", "carillon_in_flight")
		m.expect("the option", "3", "carillon_concurrency")
		time.Sleep(1500 * time.Millisecond)
		m.expect("two", "2", "carillon_in_flight")
		time.Sleep(4 * time.Second)
		m.expect("as many as may be", "3", "carillon_in_flight")
		b.queue.set(func(q *flakyQueue) { q.down = true })
		time.Sleep(20 * time.Second)
		m.expect("sent, but not written", "3", "carillon_in_flight")
		b.queue.set(func(q *flakyQueue) { q.down = false })
		time.Sleep(30 * time.Second)
		m.expect("in the end", "0", "carillon_in_flight")
	})
}

// The clock's skew is shown. One log line says that it has become notable, and one that it has ended.
func TestSkewIsTold(t *testing.T) {
	bubble(t, func(b *bench) {
		var log lockedLog
		m, d, _ := b.measure(func(c *dispatcher.Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
		synctest.Wait()
		m.expect("none", "0", "carillon_clock_skew_seconds")
		for _, step := range []struct {
			skew         time.Duration // the lead of the store's clock
			shown        string
			begun, ended int
		}{
			{100 * time.Millisecond, "-0.1", 0, 0},
			{-101 * time.Millisecond, "0.101", 1, 0},
			{300 * time.Millisecond, "-0.3", 1, 0},
			{20 * time.Millisecond, "-0.02", 1, 1},
			{200 * time.Millisecond, "-0.2", 2, 1},
		} {
			b.queue.set(func(q *flakyQueue) { q.skew = step.skew })
			time.Sleep(35 * time.Second)
			m.expect(step.skew.String(), step.shown, "carillon_clock_skew_seconds")
			if err := d.Ready(); err != nil {
				b.Errorf("with a skew of %s it is not ready: %v", step.skew, err)
			}
			begun := log.count("level=WARN msg=\"this machine's clock is off the store's")
			ended := log.count("level=INFO msg=\"this machine's clock is no longer off the store's")
			if begun != step.begun || ended != step.ended {
				b.Errorf("after a skew of %s, the log tells of %d beginnings and %d ends, want %d and %d",
					step.skew, begun, ended, step.begun, step.ended)
			}
		}
	})
}

// lockedLog is a log that can be read while it is written.
type lockedLog struct {
	lock sync.Mutex
	text bytes.Buffer
}

func (l *lockedLog) Write(p []byte) (int, error) {
	l.lock.Lock()
	defer l.lock.Unlock()
	return l.text.Write(p)
}

func (l *lockedLog) count(text string) int {
	l.lock.Lock()
	defer l.lock.Unlock()
	return strings.Count(l.text.String(), text)
}

// An idle replica makes fewer than two requests a second to the store.
func TestIdleBudget(t *testing.T) {
	bubble(t, func(b *bench) {
		registry := prometheus.NewRegistry()
		b.measure(func(c *dispatcher.Config) { c.Store = instrumented.New(b.store, registry) })
		const minutes = 10
		time.Sleep(minutes * time.Minute)
		families, err := registry.Gather()
		if err != nil {
			b.Fatal(err)
		}
		asked := map[string]uint64{}
		total := uint64(0)
		for _, family := range families {
			for _, metric := range family.GetMetric() {
				if n := metric.GetHistogram().GetSampleCount(); n > 0 {
					asked[metric.GetLabel()[0].GetValue()] += n
					total += n
				}
			}
		}
		if total > 2*60*minutes || asked["due_lanes"] == 0 || asked["count"] == 0 {
			b.Errorf("in %d minutes, it asked the store %d times: %v", minutes, total, asked)
		}
	})
}

func TestMetricsOnce(t *testing.T) {
	bubble(t, func(b *bench) {
		m, _, _ := b.measure(nil)
		cfg := dispatcher.Defaults
		cfg.Store, cfg.Callbacks, cfg.Registerer = b.queue, callbacks.NewRegistry(b.receiver), m.Registry
		if _, err := dispatcher.New(cfg); err == nil {
			b.Error("two dispatchers were registered as one")
		}
	})
}
