package kafka_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/carillon-scheduler/carillon/callbacks/kafka/testcluster"
	"github.com/carillon-scheduler/carillon/handlers"
	"github.com/carillon-scheduler/carillon/intake"
	"github.com/carillon-scheduler/carillon/intake/kafka"
)

// patience turns a hanging test into a failing one.
const patience = 2 * time.Minute

const topic = "submissions"

// office is a cluster in this process with a topic of three partitions, and an API that notes the submissions from it.
type office struct {
	*testing.T
	cluster *testcluster.Cluster

	mu     sync.Mutex
	keys   map[string][]string // by partition, which the keys begin with, in the order in which they were stored
	stored int                 // different ones
	count  map[string]int
	down   bool
	// refused counts the requests while the store was down.
	refused int
}

func newOffice(t *testing.T) *office {
	return &office{
		T: t, keys: map[string][]string{}, count: map[string]int{},
		cluster: testcluster.Start(t, kfake.SeedTopics(3, topic), kfake.SeedTopics(1, "replies", "private")),
	}
}

// ServeHTTP stores puts by their keys; a job with the key "bad" is invalid.
func (o *office) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.down {
		o.refused++
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	lines := json.NewDecoder(r.Body)
	for i := 0; lines.More(); i++ {
		var body struct{ Key string }
		if err := lines.Decode(&body); err != nil {
			o.Error(err)
		}
		if body.Key == "bad" {
			fmt.Fprintf(w, `{"index":%d,"status":422,"title":"Unprocessable Entity","detail":"bad"}`+"\n", i)
			continue
		}
		if o.count[body.Key]++; o.count[body.Key] == 1 {
			partition, _, _ := strings.Cut(body.Key, "-")
			o.keys[partition] = append(o.keys[partition], body.Key)
			o.stored++
		}
		fmt.Fprintf(w, `{"index":%d,"status":201}`+"\n", i)
	}
}

// source starts to consume. It ends with the function that it returns, or with the test.
func (o *office) source(api http.Handler, records int) (door *intake.Door, stop func()) {
	door = intake.NewDoor(intake.Config{
		API: api, Source: "topic " + topic, Tenant: "acme", Patience: time.Minute, Metrics: intake.NewMetrics(prometheus.NewRegistry()),
		Logger: slog.New(slog.NewTextHandler(o.Output(), nil)),
	})
	source := kafka.New(kafka.Config{
		Options: []kgo.Opt{kgo.SeedBrokers(o.cluster.ListenAddrs()...), kgo.MetadataMinAge(50 * time.Millisecond), kgo.HeartbeatInterval(100 * time.Millisecond)},
		Topic:   topic, Group: "carillon", Door: door, Records: records,
		MayReply: func(topic string) bool { return topic != "private" },
	})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { source.Run(ctx) })
	stop = sync.OnceFunc(func() { cancel(); running.Wait() })
	o.Cleanup(stop)
	return door, stop
}

func (o *office) client(opts ...kgo.Opt) *kgo.Client {
	o.Helper()
	client, err := kgo.NewClient(append(opts, kgo.SeedBrokers(o.cluster.ListenAddrs()...), kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
	if err != nil {
		o.Fatal(err)
	}
	o.Cleanup(client.Close)
	return client
}

// publish produces jobs numbered from one to before another one to each partition.
func (o *office) publish(from, to int) {
	o.Helper()
	var records []*kgo.Record
	for i := from; i < to; i++ {
		for p := range 3 {
			key := fmt.Sprintf("%d-%d", p, i)
			records = append(records, &kgo.Record{Topic: topic, Partition: int32(p), Key: []byte(key), Value: fmt.Appendf(nil, `{"key":%q}`, key)})
		}
	}
	if err := o.client().ProduceSync(o.Context(), records...).FirstErr(); err != nil {
		o.Fatal(err)
	}
}

func (o *office) until(what string, is func() bool) {
	o.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			o.Fatalf("it never is so that %s", what)
		}
	}
}

func (o *office) storedSoFar() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.stored
}

func (o *office) refusedSoFar() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.refused
}

// committed returns the sum of the group's offsets.
func (o *office) committed() (sum int64) {
	o.Helper()
	request := kmsg.NewPtrOffsetFetchRequest()
	request.Group = "carillon"
	group := kmsg.NewOffsetFetchRequestGroup()
	group.Group = "carillon"
	request.Groups = append(request.Groups, group)
	answer, err := request.RequestWith(o.Context(), o.client())
	if err != nil {
		o.Fatal(err)
	}
	for _, g := range answer.Groups {
		for _, t := range g.Topics {
			for _, p := range t.Partitions {
				sum += max(0, p.Offset)
			}
		}
	}
	return sum
}

// ordered checks that n jobs of each partition were stored, in order.
func (o *office) ordered(n int) {
	o.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	for p := range 3 {
		for i, key := range o.keys[fmt.Sprint(p)] {
			if key != fmt.Sprintf("%d-%d", p, i) {
				o.Fatalf("%s of partition %d is stored in place %d", key, p, i)
			}
		}
		if got := len(o.keys[fmt.Sprint(p)]); got != n {
			o.Errorf("%d of %d records of partition %d are stored", got, n, p)
		}
	}
}

// TestStored: records are stored in the order of their partition, and committed. The next source begins after them.
func TestStored(t *testing.T) {
	o := newOffice(t)
	o.publish(0, 500)
	_, stop := o.source(o, 0)
	o.until("all are stored", func() bool { return o.storedSoFar() == 1500 })
	o.until("all are committed", func() bool { return o.committed() == 1500 })
	stop()
	o.source(o, 0)
	o.publish(500, 600)
	o.until("all are stored", func() bool { return o.storedSoFar() == 1800 })
	o.ordered(600)
	for key, n := range o.count {
		if n > 1 {
			t.Errorf("%s was stored %d times", key, n)
		}
	}
}

// TestClusterRestart: a cluster that is restarted in between loses nothing.
func TestClusterRestart(t *testing.T) {
	o := newOffice(t)
	o.publish(0, 200)
	door, _ := o.source(o, 50)
	o.until("some are stored", func() bool { return o.storedSoFar() > 0 })
	o.cluster.Close()
	o.until("it notices", func() bool { return door.Problem() != "" })
	o.cluster.Start()
	o.publish(200, 300)
	o.until("all are stored", func() bool { return o.storedSoFar() == 900 })
	o.ordered(300)
	if door.Problem() != "" {
		t.Errorf("it says that it does not consume: %s", door.Problem())
	}
}

// TestStoreDown: while the store is down, nothing is committed. Uncommitted records come again.
func TestStoreDown(t *testing.T) {
	o := newOffice(t)
	o.down = true
	o.publish(0, 10)
	_, stop := o.source(o, 0)
	o.until("the store was asked repeatedly", func() bool { return o.refusedSoFar() > 1 })
	if n := o.committed(); n != 0 {
		t.Errorf("%d records are committed while the store is down", n)
	}
	stop()
	if n := o.committed(); n != 0 {
		t.Errorf("%d records are committed after the source has stopped", n)
	}
	o.mu.Lock()
	o.down = false
	o.mu.Unlock()
	o.source(o, 0)
	o.until("all are stored", func() bool { return o.storedSoFar() == 30 })
	o.ordered(10)
}

// TestSecondConsumer: two replicas share the partitions, and either takes over the other's.
func TestSecondConsumer(t *testing.T) {
	o := newOffice(t)
	_, stopFirst := o.source(o, 20)
	o.source(o, 20)
	o.publish(0, 200)
	o.until("some are stored", func() bool { return o.storedSoFar() > 50 })
	stopFirst()
	o.publish(200, 400)
	o.until("all are stored", func() bool { return o.storedSoFar() == 1200 })
	o.ordered(400)
}

// TestRepeated: the first records of a partition that is assigned to a member are marked as possible repetitions, with
// the time at which they were produced; later ones are not. Each record has an identity of its own.
func TestRepeated(t *testing.T) {
	o := newOffice(t)
	repeated, identities := map[string]bool{}, map[string]bool{}
	api := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		from, lines := handlers.InsideOf(r.Context()), json.NewDecoder(r.Body)
		o.mu.Lock()
		defer o.mu.Unlock()
		for i := 0; lines.More(); i++ {
			var body struct{ Key string }
			if err := lines.Decode(&body); err != nil || from.Items[i].Published.IsZero() {
				t.Error(body.Key, err, from.Items[i])
			}
			repeated[body.Key] = from.Items[i].Repeated
			identities[from.Items[i].Identity] = true
			fmt.Fprintf(w, `{"index":%d,"status":201}`+"\n", i)
		}
	})
	o.publish(0, 30)
	o.source(api, 10)
	o.until("all are stored", func() bool { o.mu.Lock(); defer o.mu.Unlock(); return len(repeated) == 90 })
	if len(identities) != 90 {
		t.Errorf("there are %d identities, want 90", len(identities))
	}
	for key, is := range repeated {
		_, n, _ := strings.Cut(key, "-")
		if i, _ := strconv.Atoi(n); is != (i < 10) {
			t.Errorf("%s may be a repetition: %v", key, is)
		}
	}
}

// TestPutAside: a refused record goes to the dead letters with its problem, and the problem to the topic that it names,
// if the tenant may use that.
func TestPutAside(t *testing.T) {
	o := newOffice(t)
	o.source(o, 0)
	var records []*kgo.Record
	for i, to := range []string{"replies", "", "private", "nowhere"} {
		records = append(records, &kgo.Record{Topic: topic, Value: []byte(`{"key":"bad"}`), Key: []byte(fmt.Sprint(i)), Headers: []kgo.RecordHeader{
			{Key: "Reply-To", Value: []byte(to)}, {Key: "correlation-id", Value: []byte("c" + fmt.Sprint(i))}, {Key: "content-type", Value: []byte("application/json")},
		}})
	}
	if err := o.client().ProduceSync(t.Context(), records...).FirstErr(); err != nil {
		t.Fatal(err)
	}
	o.publish(0, 1)
	o.until("the others are stored", func() bool { return o.storedSoFar() == 3 })
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	dead := consume(ctx, o, kafka.DeadLetters(topic), 4)
	for _, r := range dead {
		if string(r.Value) != `{"key":"bad"}` || !strings.Contains(header(r, "carillon-problem"), `"status":422`) ||
			header(r, "carillon-origin") != topic+"/0/"+string(r.Key) || header(r, "correlation-id") != "c"+string(r.Key) {
			t.Errorf("a dead letter is %+v", r)
		}
	}
	reply := consume(ctx, o, "replies", 1)[0]
	if header(reply, "correlation-id") != "c0" || header(reply, "content-type") != intake.ProblemMedia || !strings.Contains(string(reply.Value), `"status":422`) {
		t.Errorf("the reply is %+v", reply)
	}
}

func consume(ctx context.Context, o *office, topic string, n int) (all []*kgo.Record) {
	o.Helper()
	client := o.client(kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.MetadataMinAge(50*time.Millisecond))
	for len(all) < n {
		fetches := client.PollFetches(ctx)
		if errors.Is(fetches.Err(), context.DeadlineExceeded) {
			o.Fatalf("%d of %d records are in %s", len(all), n, topic)
		}
		all = append(all, fetches.Records()...)
	}
	return all
}

func header(r *kgo.Record, name string) string {
	for _, h := range r.Headers {
		if strings.EqualFold(h.Key, name) {
			return string(h.Value)
		}
	}
	return ""
}
