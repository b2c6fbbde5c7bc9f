package remote_test

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

var update = flag.Bool("update", false, "write the golden files")

// script has the commands of the golden files. Each line is a command.
var script = []string{
	"job put digest -f digest.yaml",
	"job put digest -f digest.yaml --create",
	"job put bad -f bad.yaml",
	"job put mail/1 -f once.json",
	"job list",
	"job list --prefix=mail/ -o json",
	"job list --limit=1 -o ndjson",
	"job pause digest",
	"job list --state=paused -o yaml",
	"job get digest",
	"job get digest --definition -o yaml",
	"job get none",
	"job preview digest --count=2",
	"job preview digest --count=2 -o json",
	"job history digest",
	"job explain digest",
	"job explain digest -o yaml",
	"job explain none",
	"job get dead",
	"forecast --to=2030-01-03T12:00:00Z --step=12h",
	"job cancel mail/1",
	"job cancel digest --if-version=01ARZ3NDEKTSV4RRFFQ69G5FAV",
	"dead-letter list",
	"dead-letter list -o json",
	"dead-letter redrive --all --yes",
	"backlog",
	"backlog -o ndjson",
	"tenant set acme --weight=3",
	"tenant list",
	"tenant limits acme",
	"key create --role=viewer --tenants=acme",
	"key list",
	"secret put token -f token.txt",
	"secret list",
	"signing-secret create default",
	"signing-secret list",
	"signing-secret rotate default --overlap=7d",
	"signing-secret list",
	"status",
	"status -o yaml",
	"diff -f jobs",
	"apply -f jobs --yes",
	"diff -f jobs",
	"context list",
	"job explode",
	"job list --help",
}

// TestGolden compares the output of commands with the golden files: into a pipe, and on a terminal.
func TestGolden(t *testing.T) {
	dir, err := filepath.Abs("testdata")
	if err != nil {
		t.Fatal(err)
	}
	for name, stream := range map[string]func(t *testing.T) (w *os.File, done func() string){
		"pipe": pipe, "terminal": terminal,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.file("token.txt", "t0ken")
			w.file("bad.yaml", "crontab: x\n")
			w.file("once.json", `{"schedules": ["2030-01-02T15:00:00+01:00"], "callback": {"type": "http", "data": {"url": "https://example.com/a"}}}`)
			w.file("jobs/digest.yaml", strings.Replace(digest, "0 9", "0 8", 1)+"deadline: 10m\n")
			w.file("jobs/news.yaml", "- "+strings.ReplaceAll(strings.Replace(digest, "digest", "news", 1), "\n", "\n  "))
			w.bury("410 \x1b[31mGone", "dead")
			var got bytes.Buffer
			for _, line := range script {
				out, done := stream(t)
				p := program()
				p.Stdin = strings.NewReader("")
				code := p.Run(words(line), out, out)
				fmt.Fprintf(&got, "$ carillon %s\n%s[exit %d]\n", line, w.masked(done()), code)
			}
			golden := filepath.Join(dir, name+".golden")
			if *update {
				if err := os.WriteFile(golden, got.Bytes(), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil || got.String() != string(want) {
				t.Errorf("it is not that of %s (go test -update writes it): %v\n%s", golden, err, &got)
			}
		})
	}
}

// collect reads a stream until its end.
func collect(r io.Reader) (text func() string) {
	var b bytes.Buffer
	end := make(chan struct{})
	go func() {
		defer close(end)
		_, _ = io.Copy(&b, r) // a terminal ends with an error
	}()
	return func() string {
		<-end
		return b.String()
	}
}

func pipe(t *testing.T) (w *os.File, done func() string) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	text := collect(r)
	return w, func() string {
		_ = w.Close()
		defer r.Close()
		return text()
	}
}

// terminal opens a pseudo-terminal of 80 columns.
func terminal(t *testing.T) (w *os.File, done func() string) {
	t.Helper()
	main, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	fd := int(main.Fd())
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	w, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetWinsize(int(w.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 40, Col: 80}); err != nil {
		t.Fatal(err)
	}
	text := collect(main)
	return w, func() string {
		_ = w.Close()
		defer main.Close()
		return strings.ReplaceAll(text(), "\r\n", "\n")
	}
}
