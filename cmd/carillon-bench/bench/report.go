package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Report holds the results of a bench.
type Report struct {
	Mode     string    `json:"mode"`
	Store    string    `json:"store"`
	Callback string    `json:"callback"`
	At       time.Time `json:"at"`
	Seconds  float64   `json:"seconds"` // duration of the bench
	Machine  Machine   `json:"machine"`
	Figures  []Figure  `json:"figures"`
	Notes    []string  `json:"notes,omitempty"`
	// Histogram is the histogram of the last round, in modes that record single observations.
	Histogram *Histogram `json:"histogram,omitempty"`
}

// Histogram counts the observations below each bound that are not below the one before.
type Histogram struct {
	Name    string   `json:"name"`
	Buckets []Bucket `json:"buckets"`
	Beyond  int      `json:"beyond"`
}

// Bucket is a bar of a histogram.
type Bucket struct {
	Below float64 `json:"below"` // milliseconds
	Count int     `json:"count"`
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
	// Raw is its bound, measured in the same rounds. Ratio is the median of the quotients, without the rounds in which
	// Raw is 0.
	Raw       []float64 `json:"raw,omitempty"`
	RawMedian float64   `json:"rawMedian,omitempty"`
	Ratio     float64   `json:"ratio,omitempty"`
	// Goal is the goal of the figure, such as "ratio >= 0.5" or "<= 10"; Met reports whether the figure meets it.
	Goal string `json:"goal,omitempty"`
	Met  *bool  `json:"met,omitempty"`
}

func newReport(mode string, s Setup) Report {
	return Report{
		Mode: mode, Store: storeKind(s.Store), Callback: s.Callback, At: time.Now().UTC().Truncate(time.Second),
		Machine: Machine{OS: runtime.GOOS, Arch: runtime.GOARCH, Cores: runtime.NumCPU(), Go: runtime.Version()},
	}
}

// goal is a bound of a figure.
type goal struct {
	of    string // "ratio", or empty for the median
	least float64
	most  float64
}

func ratioOf(least float64) *goal { return &goal{of: "ratio", least: least, most: math.Inf(1)} }
func ratioWithin(least, most float64) *goal {
	return &goal{of: "ratio", least: least, most: most}
}
func ratioAtMost(most float64) *goal {
	return &goal{of: "ratio", least: math.Inf(-1), most: most}
}
func atLeast(least float64) *goal { return &goal{least: least, most: math.Inf(1)} }
func atMost(most float64) *goal   { return &goal{least: math.Inf(-1), most: most} }

// figure adds a figure to the report. Raw may be nil; otherwise it has as many values as rounds.
func (b *Bench) figure(name, unit string, rounds, raw []float64, g *goal) {
	f := Figure{Name: name, Unit: unit, Rounds: rounds, Median: median(rounds)}
	if raw != nil {
		f.Raw, f.RawMedian = raw, median(raw)
		var ratios []float64
		for i := range rounds {
			if raw[i] != 0 { // JSON can't represent a quotient by 0
				ratios = append(ratios, rounds[i]/raw[i])
			}
		}
		if len(ratios) > 0 {
			f.Ratio = median(ratios)
		}
	}
	if g != nil {
		value := f.Median
		if g.of != "" {
			value = f.Ratio
		}
		met := value >= g.least && value <= g.most
		f.Met = &met
		var bounds []string
		if !math.IsInf(g.least, 0) {
			bounds = append(bounds, fmt.Sprintf(">= %g", g.least))
		}
		if !math.IsInf(g.most, 0) {
			bounds = append(bounds, fmt.Sprintf("<= %g", g.most))
		}
		f.Goal = strings.TrimSpace(g.of + " " + strings.Join(bounds, ", "))
	}
	b.report.Figures = append(b.report.Figures, f)
}

// note adds a remark to the report.
func (b *Bench) note(format string, args ...any) {
	b.report.Notes = append(b.report.Notes, fmt.Sprintf(format, args...))
}

// WriteJSON writes the report as JSON.
func (r *Report) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// WriteTable writes the report as a table for people.
func (r *Report) WriteTable(w io.Writer) error {
	fmt.Fprintf(w, "%s on %s, callback %s, %d cores, %s/%s, %s, %s, took %.0fs\n\n", r.Mode, r.Store, r.Callback,
		r.Machine.Cores, r.Machine.OS, r.Machine.Arch, r.Machine.Go, r.At.Format(time.RFC3339), r.Seconds)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "figure\tmedian\tunit\traw\tratio\tgoal\t\trounds")
	for _, f := range r.Figures {
		raw, ratio, met := "", "", ""
		if f.Raw != nil {
			raw, ratio = number(f.RawMedian), fmt.Sprintf("%.2f", f.Ratio)
		}
		if f.Met != nil {
			met = "missed"
			if *f.Met {
				met = "met"
			}
		}
		rounds := make([]string, len(f.Rounds))
		for i, v := range f.Rounds {
			rounds[i] = number(v)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", f.Name, number(f.Median), f.Unit, raw, ratio, f.Goal, met,
			strings.Join(rounds, " "))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if r.Histogram != nil {
		r.Histogram.write(w)
	}
	for _, n := range r.Notes {
		fmt.Fprintf(w, "\n%s\n", n)
	}
	return nil
}

// write draws the bars, without empty ones at the ends.
func (h *Histogram) write(w io.Writer) {
	most, sum := h.Beyond, h.Beyond
	for _, b := range h.Buckets {
		most, sum = max(most, b.Count), sum+b.Count
	}
	if sum == 0 {
		return
	}
	bar := func(label string, n int) {
		if n > 0 {
			fmt.Fprintf(w, "  %-12s %8d  %5.1f %%  %s\n", label, n, 100*float64(n)/float64(sum),
				strings.Repeat("#", max(1, 50*n/most)))
		}
	}
	fmt.Fprintf(w, "\n%s, last round:\n", h.Name)
	for i, b := range h.Buckets {
		label := fmt.Sprintf("< %g ms", b.Below)
		if i == 0 {
			label = "early"
		}
		bar(label, b.Count)
	}
	bar("more", h.Beyond)
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
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	if n := len(sorted); n%2 == 0 {
		return (sorted[n/2-1] + sorted[n/2]) / 2
	}
	return sorted[len(sorted)/2]
}

// quantile returns the smallest of the sorted values that at least the given share of them do not exceed.
func quantile(sorted []int64, share float64) int64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[max(0, min(len(sorted)-1, int(math.Ceil(share*float64(len(sorted))))-1))]
}
