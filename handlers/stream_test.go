package handlers_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/handlers"
	"github.com/carillon-scheduler/carillon/store"
)

// streamed is a batch whose items are sent one at a time.
type streamed struct {
	api     *api
	items   *io.PipeWriter
	results *bufio.Reader
	started chan struct{}
	failure error
	close   func()
}

func (a *api) stream(ctx context.Context, media string, headers ...string) *streamed {
	read, write := io.Pipe()
	s := &streamed{api: a, items: write, started: make(chan struct{})}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, a.url+"/v1/jobs/batch", read)
	if err != nil {
		a.Fatal(err)
	}
	request.Header.Set("Content-Type", media)
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		request.Header.Set(name, value)
	}
	go func() {
		defer close(s.started)
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			s.failure = err
			return
		}
		s.results, s.close = bufio.NewReader(response.Body), func() { _ = response.Body.Close() }
	}()
	return s
}

func (s *streamed) send(text string) {
	s.api.Helper()
	if _, err := io.WriteString(s.items, text); err != nil {
		s.api.Fatal(err)
	}
}

// line reads the next line of the results.
func (s *streamed) line() (string, error) {
	s.api.Helper()
	<-s.started
	if s.failure != nil {
		return "", s.failure
	}
	return s.results.ReadString('\n')
}

// TestBatchStreams reads each result before it sends the next item.
func TestBatchStreams(t *testing.T) {
	t.Parallel()
	for _, media := range []string{asArray, asLines} {
		t.Run(media, func(t *testing.T) {
			a := newAPI(t)
			s := a.stream(t.Context(), media)
			var all strings.Builder
			for i := range 5 {
				switch {
				case media == asLines:
					s.send(body(fmt.Sprint(i), time.Hour) + "\n")
				case i == 0:
					s.send("[" + body("0", time.Hour) + ",")
				default:
					s.send(body(fmt.Sprint(i), time.Hour) + ",")
				}
				if media == asArray { // its lines end before the next element
					part, err := readUntil(s, "}")
					if err != nil {
						t.Fatal(err)
					}
					all.WriteString(part)
					continue
				}
				line, err := s.line()
				if err != nil {
					t.Fatal(err)
				}
				all.WriteString(line)
			}
			if media == asArray {
				s.send(body("last", time.Hour) + "]")
			}
			_ = s.items.Close()
			rest, err := io.ReadAll(s.results)
			if err != nil {
				t.Fatal(err)
			}
			s.close()
			all.Write(rest)
			want := map[string]int{asArray: 6, asLines: 5}[media]
			if results := a.results(media, []byte(all.String())); len(results) != want {
				t.Errorf("%d results, want %d", len(results), want)
			}
		})
	}
}

func readUntil(s *streamed, end string) (string, error) {
	<-s.started
	if s.failure != nil {
		return "", s.failure
	}
	return s.results.ReadString(end[0])
}

// TestBatchWhileTheStoreIsDown does not end its items: the server must give up by itself.
func TestBatchWhileTheStoreIsDown(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.store.setFault(fmt.Errorf("%w: connection refused", store.ErrUnavailable))
	s := a.stream(t.Context(), asLines)
	var all strings.Builder
	for i := range 3 {
		s.send(body(fmt.Sprint(i), time.Hour) + "\n")
		line, err := s.line()
		if err != nil {
			t.Fatal(err)
		}
		all.WriteString(line)
	}
	rest, err := io.ReadAll(s.results)
	if err != nil {
		t.Fatal(err)
	}
	s.close()
	all.Write(rest)
	results := a.results(asLines, []byte(all.String()))
	if len(results) != 4 {
		t.Fatalf("%d results, want 4: %s", len(results), all.String())
	}
	for i, r := range results {
		if r.Index != i || r.Status != 503 || (r.Key == "") != (i == 3) {
			t.Errorf("result %d: %+v", i, r)
		}
	}
}

func TestBatchOutlivesABlip(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	s := a.stream(t.Context(), asLines)
	for i := range 8 {
		want := 201
		if i%4 < 2 { // twice in a row, then not
			want = 503
			a.store.setFault(store.ErrUnavailable)
		}
		s.send(body(fmt.Sprint(i), time.Hour) + "\n")
		line, err := s.line()
		if err != nil {
			t.Fatal(err)
		}
		if got := a.results(asLines, []byte(line)); got[0].Status != want {
			t.Errorf("item %d: %+v", i, got)
		}
		a.store.setFault(nil)
	}
	_ = s.items.Close()
	if rest, err := io.ReadAll(s.results); err != nil || len(rest) > 0 {
		t.Errorf("left: %q, %v", rest, err)
	}
	s.close()
}

// TestBatchEndsWithItsClient only has to end: the server's Close waits for its requests.
func TestBatchEndsWithItsClient(t *testing.T) {
	t.Parallel()
	for _, media := range []string{asArray, asLines} {
		t.Run(media, func(t *testing.T) {
			a := newAPI(t)
			ctx, cancel := context.WithCancel(t.Context())
			s := a.stream(ctx, media)
			if media == asArray {
				s.send("[")
			}
			s.send(body("a", time.Hour) + map[string]string{asArray: ",", asLines: "\n"}[media])
			if _, err := readUntil(s, "}"); err != nil {
				t.Fatal(err)
			}
			s.send(`{"key":"half`)
			cancel()
			if _, err := io.ReadAll(s.results); !errors.Is(err, context.Canceled) {
				t.Errorf("reading on: %v", err)
			}
		})
	}
}

// chunk sends items so that they are stored together: it holds up the Put of one before them until they have been
// gathered. It answers their results.
func chunk(t *testing.T, prepare func(*api), items ...string) (*api, []result) {
	t.Helper()
	begun, gathered := make(chan struct{}), make(chan struct{})
	a := newAPI(t, func(c *handlers.Config) {
		c.Callbacks = callbacks.NewRegistry(watchedSender{"http", func() { close(gathered) }})
	})
	prepare(a)
	a.store.takePuts()
	puts := 0
	a.store.onPut = func([]store.Put) {
		if puts++; puts == 1 {
			close(begun)
			<-gathered
		}
	}
	s := a.stream(t.Context(), asLines)
	s.send(body("first", time.Hour) + "\n")
	<-begun
	for _, item := range items {
		s.send(item + "\n")
	}
	// An item is checked only when the one before it has been gathered.
	s.send(with(body("last", time.Hour), "callback", map[string]any{"type": "http", "data": "last"}) + "\n")
	_ = s.items.Close()
	<-s.started
	if s.failure != nil {
		t.Fatal(s.failure)
	}
	got, err := io.ReadAll(s.results)
	if err != nil {
		t.Fatal(err)
	}
	s.close()
	results := a.results(asLines, got)
	if len(results) != len(items)+2 {
		t.Fatalf("%d results, want %d", len(results), len(items)+2)
	}
	return a, results[1 : len(results)-1]
}

// TestBatchUndoesNothingLater: an item that waits until the items before it are stored does not undo another client's
// change in between.
func TestBatchUndoesNothingLater(t *testing.T) {
	t.Parallel()
	begun, gathered, proceed := make(chan struct{}), make(chan struct{}), make(chan struct{})
	a := newAPI(t, ofStoresClock, func(c *handlers.Config) {
		c.Callbacks = callbacks.NewRegistry(watchedSender{"http", func() { close(gathered) }})
	})
	a.call("PUT", "/v1/jobs/a", body("a", time.Hour)).want(201)
	puts := 0
	a.store.onPut = func([]store.Put) {
		if puts++; puts == 1 {
			close(begun)
			<-proceed
		}
	}
	s := a.stream(t.Context(), asLines)
	s.send(body("first", time.Hour) + "\n")
	<-begun
	s.send(body("a", 2*time.Hour) + "\n")
	// An item is checked only when the one before it has been gathered.
	s.send(with(body("last", time.Hour), "callback", map[string]any{"type": "http", "data": "last"}) + "\n")
	_ = s.items.Close()
	<-gathered
	time.Sleep(20 * time.Millisecond) // more than the clocks are known by
	want := decode[accepted](a.call("PUT", "/v1/jobs/a", body("a", 9*time.Hour)).want(200)).Version
	close(proceed)
	<-s.started
	if s.failure != nil {
		t.Fatal(s.failure)
	}
	got, err := io.ReadAll(s.results)
	if err != nil {
		t.Fatal(err)
	}
	s.close()
	var statuses []int
	for _, r := range a.results(asLines, got) {
		statuses = append(statuses, r.Status)
	}
	if !slices.Equal(statuses, []int{201, 409, 201}) {
		t.Errorf("answered %d, want 201, 409 for what was overtaken, and 201", statuses)
	}
	if left := a.definition("a"); left.Version != want {
		t.Errorf("left is version %s of %v, want %s", left.Version, left.Schedules, want)
	}
}

// TestBatchReplacesItsOwn: an item that is read before a full chunk with its key is stored replaces that.
func TestBatchReplacesItsOwn(t *testing.T) {
	t.Parallel()
	const full = 1000
	begun, read := make(chan struct{}), make(chan struct{})
	a := newAPI(t, ofStoresClock, func(c *handlers.Config) {
		c.Callbacks = callbacks.NewRegistry(watchedSender{"http", func() { close(read) }})
	})
	puts := 0
	a.store.onPut = func([]store.Put) {
		if puts++; puts == 1 {
			close(begun)
			<-read
			time.Sleep(20 * time.Millisecond) // more than the clocks are known by
		}
	}
	s := a.stream(t.Context(), asLines)
	s.send(body("first", time.Hour) + "\n")
	<-begun
	for i := range full {
		s.send(body(fmt.Sprint(i), time.Hour) + "\n")
	}
	s.send(with(body("0", 9*time.Hour), "callback", map[string]any{"type": "http", "data": "last"}) + "\n")
	_ = s.items.Close()
	<-s.started
	if s.failure != nil {
		t.Fatal(s.failure)
	}
	got, err := io.ReadAll(s.results)
	if err != nil {
		t.Fatal(err)
	}
	s.close()
	results := a.results(asLines, got)
	if last := results[len(results)-1]; len(results) != full+2 || last.Status != 200 {
		t.Errorf("of %d results, the last is %+v", len(results), last)
	}
}

func TestBatchGathersWhatWaits(t *testing.T) {
	t.Parallel()
	var items []string
	for i := range 500 {
		items = append(items, body(fmt.Sprint(i), time.Hour))
	}
	a, _ := chunk(t, func(*api) {}, items...)
	puts := a.store.takePuts()
	if len(puts) > 3 || len(puts[1]) < len(items) { // the last may come with them or behind them
		t.Errorf("%d puts", len(puts))
	}
}

// TestChunksAreBounded lets no chunk be stored, and sees how many items are taken all the same.
func TestChunksAreBounded(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ weight, want int }{
		"by number": {4000, 1000}, "by weight": {1 << 20, 4}, "by weight, one above": {5 << 20, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if got := handlers.Gathered(t.Context(), test.weight, synctest.Wait); got != test.want {
					t.Errorf("%d items are held, want %d", got, test.want)
				}
			})
		})
	}
}

// TestLaterOfTheSameKeyWins has items that need a second try, because they were taken for new, before and behind
// others.
func TestLaterOfTheSameKeyWins(t *testing.T) {
	t.Parallel()
	mixed := func(key string, hours int) string { return body(key, -time.Hour, time.Duration(hours)*time.Hour) }
	plain := func(key string, hours int) string { return body(key, time.Duration(hours)*time.Hour) }
	for name, items := range map[string][]string{
		"plain, plain":        {plain("a", 1), plain("b", 1), plain("a", 9)},
		"mixed, plain":        {mixed("a", 1), plain("b", 1), plain("a", 9)},
		"plain, mixed":        {plain("a", 1), plain("b", 1), mixed("a", 9)},
		"mixed, mixed, mixed": {mixed("a", 1), mixed("a", 2), plain("b", 1), mixed("a", 9)},
	} {
		for _, exists := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, exists %t", name, exists), func(t *testing.T) {
				a, results := chunk(t, func(a *api) {
					if exists {
						a.call("PUT", "/v1/jobs/a", plain("a", 5)).want(201)
					}
				}, items...)
				last := ""
				for i, r := range results {
					if r.Status != 200 && r.Status != 201 {
						t.Fatalf("result %d: %+v", i, r)
					}
					if r.Key == "a" {
						last = r.Revision
					}
				}
				got := decode[definition](a.call("GET", "/v1/jobs/a", "").want(200))
				if got.Revision != last || got.Schedules[len(got.Schedules)-1] != at(9*time.Hour) {
					t.Errorf("left is %s of %v, want %s", got.Revision, got.Schedules, last)
				}
				want := 1 // the last replaces, so past instants are skipped
				if name == "mixed, mixed, mixed" && !exists {
					want = 2 // except for the pending instant of the first
				}
				if got.Pending != want {
					t.Errorf("%d pending, want %d", got.Pending, want)
				}
			})
		}
	}
}

// TestManyOfAChunkAreTriedAgain has more items at once that were taken for new than are looked at at once.
func TestManyOfAChunkAreTriedAgain(t *testing.T) {
	t.Parallel()
	var items []string
	for i := range 20 {
		items = append(items, body(fmt.Sprint(i), -time.Hour, time.Hour))
	}
	_, results := chunk(t, func(a *api) {
		for i, item := range items {
			a.call("PUT", pathOf(fmt.Sprint(i)), item).want(201)
		}
	}, items...)
	for _, r := range results {
		if r.Status != 200 || r.Occurrences != 2 {
			t.Errorf("%+v, want what has passed and is pending to stay", r)
		}
	}
}
