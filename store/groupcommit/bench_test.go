//go:build services

package groupcommit_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	_ "modernc.org/sqlite"
)

// roleVariable makes a process of this test program a measured server or the measuring client.
const roleVariable = "CARILLON_BENCH_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(roleVariable) {
	case "bare":
		serveBare()
	case "client":
		submit()
	default:
		os.Exit(m.Run())
	}
}

// BenchmarkPost submits jobs of one instant one by one, over 256 connections and over one. It compares the program with
// a minimal server: a gin handler that stores the bodies unchanged, joins those that arrive together in one durable
// write, and does nothing else. Each server and the client is a process of its own. The servers take turns, and the
// medians are compared. Run it with -benchtime 1x.
func BenchmarkPost(b *testing.B) {
	programs := []string{buildProgram(b)}
	if list := os.Getenv("CARILLON_BENCH_PROGRAMS"); list != "" { // further programs to compare
		programs = append(programs, strings.Split(list, ",")...)
	}
	for _, s := range []struct{ name, variable, id string }{
		{"sqlite", "", ""},
		{"postgres", "CARILLON_TEST_POSTGRES_URL", "schema"},
		{"redis", "CARILLON_TEST_REDIS_URL", "prefix"},
	} {
		b.Run(s.name, func(b *testing.B) {
			fresh := func() string {
				id := "b" + strings.ToLower(rand.Text())
				base, query, _ := strings.Cut(os.Getenv(s.variable), "?")
				switch {
				case s.variable == "":
					return "sqlite:" + filepath.Join(b.TempDir(), id)
				case base == "":
					b.Fatalf("%s is not set: run this by .ci/with-services", s.variable)
				case s.id == "":
					return strings.TrimSuffix(base, "/") + "/" + id + "?" + query
				}
				return base + "?" + query + "&" + s.id + "=" + id
			}
			targets := []*target{start(b, fresh(), os.Args[0])}
			for _, p := range programs {
				targets = append(targets, start(b, fresh(), p, "serve", "--listen=127.0.0.1:0"))
			}
			for b.Loop() {
				compare(b, targets)
			}
		})
	}
}

func compare(b *testing.B, targets []*target) {
	const rounds = 5
	for _, connections := range []int{256, 1} {
		rates, delays, costs := make([][]float64, len(targets)), make([][]float64, len(targets)), make([][]float64, len(targets))
		for round := range rounds + 1 { // the first round is a warm-up
			for i, t := range targets {
				before := t.cpu(b)
				r := load(b, t.address, connections, 1500*time.Millisecond)
				if round > 0 {
					rates[i], delays[i] = append(rates[i], r.PerSecond), append(delays[i], r.Median)
					costs[i] = append(costs[i], (t.cpu(b)-before)/r.Count*1e6)
				}
			}
		}
		for i := range targets {
			name := "bare"
			if i > 0 {
				name = fmt.Sprint("program", i)
				b.ReportMetric(median(rates[i])/median(rates[0]), fmt.Sprintf("%s/bare@%d", name, connections))
			}
			b.Logf("%d connections, %s: %.0f/s, median %.2f ms, %.0f us of CPU each", connections, name, rates[i], delays[i], costs[i])
		}
	}
}

func median(v []float64) float64 {
	return slices.Sorted(slices.Values(v))[len(v)/2]
}

func buildProgram(b *testing.B) string {
	path := filepath.Join(b.TempDir(), "carillon")
	if out, err := exec.Command("../../.ci/build", path).CombinedOutput(); err != nil {
		b.Fatalf("build: %v\n%s", err, out)
	}
	return path
}

// target is a server under measurement.
type target struct {
	address string
	process *os.Process
}

// cpu returns the CPU seconds that the server has used.
func (t *target) cpu(b *testing.B) float64 {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", t.process.Pid))
	if err != nil {
		b.Fatal(err)
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return float64(user+system) / 100
}

// start starts a server on a store. Both kinds print their address in a line of JSON.
func start(b *testing.B, store, program string, args ...string) *target {
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), "CARILLON_STORE="+store, "CARILLON_LOG_FORMAT=json", roleVariable+"=bare")
	stderr, err := cmd.StderrPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	address := make(chan string, 1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			var entry struct{ Msg, Address string }
			if json.Unmarshal(lines.Bytes(), &entry); entry.Msg == "serving" {
				address <- entry.Address
			} else {
				fmt.Fprintln(os.Stderr, lines.Text())
			}
		}
	}()
	b.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
		_ = cmd.Wait()
	})
	select {
	case a := <-address:
		return &target{a, cmd.Process}
	case <-ended:
		b.Fatalf("%s ended", program)
	}
	return nil
}

// measured is a client's measurement.
type measured struct {
	Count     float64
	PerSecond float64
	Median    float64 // milliseconds
}

func load(b *testing.B, address string, connections int, length time.Duration) (m measured) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleVariable+"=client", "ADDRESS="+address, "CONNECTIONS="+strconv.Itoa(connections), "LENGTH="+length.String())
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err == nil {
		err = json.Unmarshal(out, &m)
	}
	if err != nil {
		b.Fatalf("client: %v\n%s", err, out)
	}
	return m
}

// submit is the main function of the client process.
func submit() {
	connections, _ := strconv.Atoi(os.Getenv("CONNECTIONS"))
	length, _ := time.ParseDuration(os.Getenv("LENGTH"))
	end := time.Now().Add(length)
	delays := make([][]time.Duration, connections)
	var group sync.WaitGroup
	for i := range connections {
		group.Go(func() {
			conn, err := net.Dial("tcp", os.Getenv("ADDRESS"))
			must(err)
			defer conn.Close()
			answers := bufio.NewReader(conn)
			for time.Now().Before(end) {
				begun := time.Now()
				body := fmt.Sprintf(bodyFormat, rand.Text())
				_, err := fmt.Fprintf(conn, "POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
					len(body), body)
				must(err)
				must(readCreated(answers))
				delays[i] = append(delays[i], time.Since(begun))
			}
		})
	}
	group.Wait()
	all := slices.Concat(delays...)
	slices.Sort(all)
	must(json.NewEncoder(os.Stdout).Encode(measured{float64(len(all)), float64(len(all)) / length.Seconds(), all[len(all)/2].Seconds() * 1000}))
}

const bodyFormat = `{"key":"%s","schedules":["2035-06-01T12:00:00Z"],"callback":{"type":"http","data":{"url":"http://127.0.0.1:9/hook","payload":{"customer":12345,"text":"Your order is ready"}}}}`

// keyIn returns the key in such a body.
func keyIn(body []byte) string { return string(body[8 : 8+26]) }

// readCreated reads a response with a known length at the least cost.
func readCreated(r *bufio.Reader) error {
	length, first := -1, true
	for {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return err
		}
		if first && !bytes.HasPrefix(line, []byte("HTTP/1.1 201")) {
			rest, _ := r.Peek(r.Buffered())
			return fmt.Errorf("%s%s", line, rest)
		}
		first = false
		if value, ok := bytes.CutPrefix(line, []byte("Content-Length: ")); ok {
			length, _ = strconv.Atoi(string(bytes.TrimSpace(value)))
		}
		if len(line) == 2 {
			_, err := r.Discard(length)
			return err
		}
	}
}

// serveBare is the main function of the minimal server.
func serveBare() {
	write := openBare(os.Getenv("CARILLON_STORE"))
	type request struct {
		body []byte
		done chan error
	}
	requests := make(chan request, 1024)
	go func() {
		for first := range requests {
			batch := []request{first}
			for more := true; more && len(batch) < 1000; {
				select {
				case r := <-requests:
					batch = append(batch, r)
				default:
					more = false
				}
			}
			bodies := make([][]byte, len(batch))
			for i := range batch {
				bodies[i] = batch[i].body
			}
			err := write(context.Background(), bodies)
			for _, r := range batch {
				r.done <- err
			}
		}
	}()
	gin.SetMode(gin.ReleaseMode)
	e := gin.New()
	e.POST("/v1/jobs", func(c *gin.Context) {
		body, err := c.GetRawData()
		if err != nil {
			c.AbortWithStatus(http.StatusBadRequest)
			return
		}
		r := request{body, make(chan error, 1)}
		requests <- r
		if err := <-r.done; err != nil {
			fmt.Fprintln(os.Stderr, err)
			c.AbortWithStatus(http.StatusServiceUnavailable)
			return
		}
		c.JSON(http.StatusCreated, gin.H{"key": keyIn(body)})
	})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	fmt.Fprintf(os.Stderr, "{\"msg\":\"serving\",\"address\":%q}\n", listener.Addr())
	must(http.Serve(listener, e))
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// openBare returns a function that stores bodies by their keys.
func openBare(url string) func(ctx context.Context, bodies [][]byte) error {
	ctx := context.Background()
	base, query, _ := strings.Cut(url, "?")
	_, name, _ := strings.Cut(query[strings.LastIndex(query, "&")+1:], "=")
	switch scheme, rest, _ := strings.Cut(url, ":"); scheme {
	case "sqlite":
		db, err := sql.Open("sqlite", "file:"+rest+"?_txlock=immediate&_pragma=journal_mode(wal)&_pragma=synchronous(full)&_pragma=cache_size(-65536)")
		must(err)
		db.SetMaxOpenConns(1)
		_, err = db.Exec(`CREATE TABLE bare (rowid INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, body BLOB NOT NULL)`)
		must(err)
		insert, err := db.Prepare(`INSERT INTO bare (key, body) VALUES (?, ?)`)
		must(err)
		return func(ctx context.Context, bodies [][]byte) error {
			tx, err := db.BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			defer tx.Rollback()
			each := tx.Stmt(insert)
			for _, b := range bodies {
				if _, err := each.Exec(keyIn(b), b); err != nil {
					return err
				}
			}
			return tx.Commit()
		}
	case "postgres", "postgresql":
		pool, err := pgxpool.New(ctx, base)
		must(err)
		table := "bare_" + name
		_, err = pool.Exec(ctx, `CREATE TABLE `+table+` (key text COLLATE "C" PRIMARY KEY, body bytea NOT NULL)`)
		must(err)
		return func(ctx context.Context, bodies [][]byte) error {
			keys := make([]string, len(bodies))
			for i, b := range bodies {
				keys[i] = keyIn(b)
			}
			_, err := pool.Exec(ctx, `INSERT INTO `+table+` SELECT * FROM unnest($1::text[], $2::bytea[])`, keys, bodies)
			return err
		}
	case "redis":
		o, err := redis.ParseURL(base)
		must(err)
		client := redis.NewClient(o)
		return func(ctx context.Context, bodies [][]byte) error {
			pipe := client.Pipeline()
			for _, b := range bodies {
				pipe.SetNX(ctx, name+keyIn(b), b, 0)
			}
			_, err := pipe.Exec(ctx)
			return err
		}
	default:
		panic(scheme)
	}
}
