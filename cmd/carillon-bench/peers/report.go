package main

import (
	"fmt"
	"io"
	"math"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Report holds the measurements of one subject in one mode. It has the fields of a report of Carillon's bench, which is
// decoded into it, and a few more.
type Report struct {
	Mode     string    `json:"mode"`
	Subject  string    `json:"subject"`
	Version  string    `json:"version"`
	Settings string    `json:"settings"` // their name
	How      string    `json:"how"`      // description of the settings
	Store    string    `json:"store"`
	Server   string    `json:"server"` // with its version
	Callback string    `json:"callback"`
	At       time.Time `json:"at"`
	Seconds  float64   `json:"seconds"` // duration of all rounds together
	Machine  Machine   `json:"machine"`
	Figures  []Figure  `json:"figures"`
	Notes    []string  `json:"notes,omitempty"`
}

// Machine describes the machine of the bench.
type Machine struct {
	OS    string `json:"os"`
	Arch  string `json:"arch"`
	Cores int    `json:"cores"`
	Go    string `json:"go"`
}

// Figure is a measurement, with a value for each round.
type Figure struct {
	Name   string    `json:"name"`
	Unit   string    `json:"unit"`
	Rounds []float64 `json:"rounds"`
	Median float64   `json:"median"`
	// Raw is its bound, which Carillon's bench measures in the same rounds.
	Raw       []float64 `json:"raw,omitempty"`
	RawMedian float64   `json:"rawMedian,omitempty"`
}

func newReport(mode string) Report {
	return Report{Mode: mode, Callback: "discard", At: time.Now().UTC().Truncate(time.Second),
		Machine: Machine{OS: runtime.GOOS, Arch: runtime.GOARCH, Cores: runtime.NumCPU(), Go: runtime.Version()}}
}

// add adds a figure of one round.
func (r *Report) add(name, unit string, value float64) {
	r.Figures = append(r.Figures, Figure{Name: name, Unit: unit, Rounds: []float64{value}, Median: value})
}

// join adds the rounds of another report of the same subject and mode. Both must have the same figures.
func (r *Report) join(other Report) error {
	r.Seconds += other.Seconds
	r.Notes = append(r.Notes, other.Notes...)
	if len(r.Figures) != len(other.Figures) {
		return fmt.Errorf("%s, %s: a round has %d figures and another %d", r.Mode, r.Subject, len(r.Figures),
			len(other.Figures))
	}
	for i := range r.Figures {
		f, o := &r.Figures[i], other.Figures[i]
		if f.Name != o.Name {
			return fmt.Errorf("%s, %s: one round has %q where another has %q", r.Mode, r.Subject, f.Name, o.Name)
		}
		f.Rounds, f.Raw = append(f.Rounds, o.Rounds...), append(f.Raw, o.Raw...)
		f.Median = median(f.Rounds)
		if len(f.Raw) > 0 {
			f.RawMedian = median(f.Raw)
		}
	}
	return nil
}

// column is a figure in a table, with a short name for the head.
type column struct{ figure, head string }

// columnsOf lists the columns of each mode.
var columnsOf = map[string][]column{
	"drain": {{"drained", "jobs/s"}},
	"steady": {{"deviation p50", "p50 ms"}, {"deviation p95", "p95 ms"}, {"deviation p99", "p99 ms"},
		{"deviation p99.9", "p99.9 ms"},
		{"deviation max", "max ms"}, {"early", "early"}, {"lost", "lost"}, {"doubled", "doubled"}},
	"idle": {{"processor", "% of a core"}, {"queries of the store", "queries/s"}},
}

// writeTables writes the reports for people: a Markdown table for each mode, with the medians of all rounds, and the
// least and greatest value of the first figure.
func writeTables(w io.Writer, reports []Report) error {
	m := reports[0].Machine
	fmt.Fprintf(w, "%d cores, %s/%s, %s, %s\n", m.Cores, m.OS, m.Arch, m.Go, reports[0].At.Format(time.RFC3339))
	for _, mode := range allModes {
		columns := columnsOf[mode]
		t := tabwriter.NewWriter(w, 0, 0, 1, ' ', 0)
		begun := false
		for _, r := range reports {
			if r.Mode != mode {
				continue
			}
			if !begun {
				begun = true
				fmt.Fprintf(w, "\n%s, rounds: %d\n\n", mode, len(r.Figures[0].Rounds))
				titles := heads(columns, len(r.Figures[0].Rounds))
				row(t, "subject", "store", "settings", titles...)
				row(t, "---", "---", "---", slices.Repeat([]string{"---"}, len(titles))...)
			}
			row(t, r.Subject, r.Store, r.Settings, r.cells(columns)...)
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	fmt.Fprintln(w)
	told := map[string]bool{}
	for _, r := range reports {
		if r.Subject != "carillon" { // its notes belong to its own table
			for _, n := range r.Notes {
				fmt.Fprintf(w, "%s: %s\n", r.Subject, n)
			}
		}
		line := fmt.Sprintf("%s, %s: %s on %s. %s", r.Subject, r.Settings, r.Version, r.Server, r.How)
		if !told[line] {
			told[line] = true
			fmt.Fprintln(w, line)
		}
	}
	return nil
}

func row(w io.Writer, subject, store, settings string, cells ...string) {
	fmt.Fprintf(w, "| %s\t| %s\t| %s\t| %s\t|\n", subject, store, settings, strings.Join(cells, "\t| "))
}

func heads(columns []column, rounds int) []string {
	var heads []string
	for _, c := range columns {
		heads = append(heads, c.head)
	}
	if rounds > 1 {
		heads = append(heads, columns[0].head+", least to most")
	}
	return heads
}

// cells returns the medians of the columns, and the spread of the first one's rounds if there are several.
func (r *Report) cells(columns []column) []string {
	cells, spread := []string{}, ""
	for _, c := range columns {
		i := slices.IndexFunc(r.Figures, func(f Figure) bool { return f.Name == c.figure })
		if i < 0 {
			cells = append(cells, "?")
			continue
		}
		f := r.Figures[i]
		cells = append(cells, number(f.Median))
		if c == columns[0] && len(f.Rounds) > 1 {
			spread = number(slices.Min(f.Rounds)) + " to " + number(slices.Max(f.Rounds))
		}
	}
	if spread != "" {
		cells = append(cells, spread)
	}
	return cells
}

// number formats a figure with at least three digits.
func number(v float64) string {
	switch a := math.Abs(v); {
	case a >= 100 || v == math.Trunc(v):
		return fmt.Sprintf("%.0f", v)
	case a >= 10:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.3g", v)
	}
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	if n%2 == 0 {
		return (sorted[n/2-1] + sorted[n/2]) / 2
	}
	return sorted[n/2]
}

// quantile returns the smallest of the sorted values that at least the given share of them do not exceed.
func quantile(sorted []int64, share float64) int64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[max(0, min(len(sorted)-1, int(math.Ceil(share*float64(len(sorted))))-1))]
}
