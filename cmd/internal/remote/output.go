package remote

import (
	"bytes"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"golang.org/x/term"

	"github.com/carillon-scheduler/carillon/cmd/internal/cli"
)

// document is an answer of the service, with all its members. Numbers are [json.Number].
type document map[string]any

// column is a column of a table: its heading, and the path of its value in a document, with dots.
type column struct{ heading, path string }

// output is the option -o.
type output struct{ form string }

func (o *output) flags(f *flag.FlagSet) {
	cli.Choice(f, &o.form, "o", []string{"table", "json", "yaml", "ndjson"},
		"`FORM`: How to print. A table has tabs between its columns unless it goes to a terminal.")
}

// printer prints documents. Tables that go to a pipe, and ndjson, are printed item by item; the rest at the end.
type printer struct {
	form     string
	w        io.Writer
	terminal terminal
	kept     []shown
	// now is the service's time of the last answer; zero if it is not known.
	now time.Time
}

// shown is a document to print, with its bytes as they came, so that the order of members stays; nil if it did not
// come.
type shown struct {
	document
	raw json.RawMessage
}

// bytes returns the document's JSON.
func (s shown) bytes() json.RawMessage {
	if s.raw == nil {
		return compact(s.document)
	}
	return s.raw
}

func (o *output) printer(in cli.Input) *printer {
	return &printer{form: o.form, w: in.Stdout, terminal: terminalOf(in.Stdout)}
}

// terminal describes the target of the output.
type terminal struct {
	is     bool
	colour bool
	width  int
}

// terminalOf finds out whether a stream is a terminal.
func terminalOf(w io.Writer) terminal {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) { //nolint:gosec // descriptors are small
		return terminal{}
	}
	width, _, err := term.GetSize(int(f.Fd())) //nolint:gosec // as above
	if err != nil || width < 20 {
		width = 80
	}
	return terminal{true, os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb", width}
}

// item prints one of several documents.
func (p *printer) item(d shown) {
	if p.form == "ndjson" {
		fmt.Fprintf(p.w, "%s\n", compact(d.bytes()))
		return
	}
	p.kept = append(p.kept, d)
}

// end prints the kept documents.
func (p *printer) end(columns []column) error {
	if p.form == "table" {
		p.table(columns)
		return nil
	}
	if p.form == "ndjson" {
		return nil
	}
	all := make([]json.RawMessage, len(p.kept))
	for i, d := range p.kept {
		all[i] = d.bytes()
	}
	return p.write(compact(all))
}

// write prints JSON in another form than a table.
func (p *printer) write(raw json.RawMessage) (err error) {
	out := []byte(raw)
	switch p.form {
	case "json":
		var b bytes.Buffer
		if err := json.Indent(&b, raw, "", "  "); err != nil {
			return err
		}
		out = append(b.Bytes(), '\n')
	case "yaml":
		if out, err = yaml.JSONToYAML(raw); err != nil {
			return err
		}
	case "ndjson":
		out = append(compact(raw), '\n')
	}
	_, err = p.w.Write(out)
	return err
}

// one prints a single document: as a list of its members, unless a form is given.
func (p *printer) one(d shown) error {
	if p.form != "table" {
		return p.write(d.bytes())
	}
	var rows [][2]string
	for _, name := range names(d.document) {
		rows = append(rows, [2]string{name, text(d.document[name])})
	}
	if p.terminal.is {
		rows = unfolded(d.document)
	}
	p.members(rows)
	return nil
}

// names returns the members of a document: first those that identify it and show its state, then the others by name.
func names(d document) []string {
	first := []string{"key", "id", "name", "tenant", "state", "code", "summary", "role"}
	var all []string
	for name := range d {
		all = append(all, name)
	}
	rank := func(name string) int {
		if i := slices.Index(first, name); i >= 0 {
			return i
		}
		return len(first)
	}
	slices.SortFunc(all, func(a, b string) int {
		if d := rank(a) - rank(b); d != 0 {
			return d
		}
		return strings.Compare(a, b)
	})
	return all
}

// table prints the kept documents in columns: aligned on a terminal, or with tabs between them.
func (p *printer) table(columns []column) {
	if p.terminal.is {
		p.grid(columns)
		return
	}
	headings := make([]string, len(columns))
	for i, c := range columns {
		headings[i] = c.heading
	}
	fmt.Fprintln(p.w, strings.Join(headings, "\t"))
	for _, d := range p.kept {
		row := make([]string, len(columns))
		for i, c := range columns {
			row[i] = text(d.at(c.path))
		}
		fmt.Fprintln(p.w, strings.Join(row, "\t"))
	}
}

// members prints names and values: aligned on a terminal, or with tabs between them.
func (p *printer) members(rows [][2]string) {
	if p.terminal.is {
		p.sheet(rows)
		return
	}
	for _, row := range rows {
		fmt.Fprintf(p.w, "%s\t%s\n", row[0], row[1])
	}
}

// cut shortens a text to a number of columns.
func cut(s string, width int) string {
	if utf8.RuneCountInString(s) <= width {
		return s
	}
	return string([]rune(s)[:max(width-1, 0)]) + "…"
}

// at returns the member of a path; nil if there is none.
func (d document) at(path string) any {
	var v any = map[string]any(d)
	for name := range strings.SplitSeq(path, ".") {
		m, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		v = m[name]
	}
	return v
}

// text writes a value in one line, without anything that a terminal would obey.
func text(v any) string {
	switch v := v.(type) {
	case nil:
		return "-"
	case string:
		if v == "" {
			return "-"
		}
		return strings.Map(func(r rune) rune {
			if unicode.IsControl(r) || r == utf8.RuneError || unicode.Is(unicode.Bidi_Control, r) {
				return '·'
			}
			return r
		}, v)
	case bool:
		return map[bool]string{true: "yes", false: "no"}[v]
	case []any:
		var all []string
		for _, one := range v {
			if _, ok := one.(map[string]any); ok {
				return text(string(compact(v)))
			}
			all = append(all, text(one))
		}
		return cmp.Or(strings.Join(all, ","), "-")
	case map[string]any:
		return text(string(compact(v)))
	default:
		return fmt.Sprint(v)
	}
}

// readShown reads a document that is to be printed.
func readShown(raw json.RawMessage) (shown, error) {
	d, err := read[document](raw)
	return shown{d, raw}, err
}

// read reads a document.
func read[T any](body []byte) (v T, err error) {
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	if err = d.Decode(&v); err != nil {
		err = fmt.Errorf("the answer can't be read: %w", err)
	}
	return v, err
}

func compact(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(v) // a decoded value can be encoded
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}
