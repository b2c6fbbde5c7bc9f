package remote

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// grid prints the kept documents as a table for a terminal. Columns without any value are left out. Those that do not
// fit into the width of the terminal follow on indented lines below each row.
func (p *printer) grid(columns []column) {
	columns = slices.DeleteFunc(slices.Clone(columns), func(c column) bool {
		return len(p.kept) > 0 && !slices.ContainsFunc(p.kept, func(d shown) bool { return text(d.at(c.path)) != "-" })
	})
	headings := make([]string, len(columns))
	widths := make([]int, len(columns))
	for i, c := range columns {
		headings[i], widths[i] = c.heading, utf8.RuneCountInString(c.heading)
	}
	rows := make([][]string, len(p.kept))
	for n, d := range p.kept {
		rows[n] = make([]string, len(columns))
		for i, c := range columns {
			rows[n][i] = p.brief(c.path, d.at(c.path))
			widths[i] = max(widths[i], utf8.RuneCountInString(rows[n][i]))
		}
	}
	fitting, used := 0, 0
	for fitting < len(columns) && (fitting == 0 || used+widths[fitting] <= p.terminal.width) {
		used += widths[fitting] + 2
		fitting++
	}
	line := func(row []string, colour func(column int) string) {
		left := p.terminal.width
		for i, cell := range row[:fitting] {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)+2)
			if i == fitting-1 {
				pad = ""
			}
			fmt.Fprintf(p.w, "%s%s", p.tint(colour(i), cut(cell, left)), pad)
			left -= widths[i] + 2
		}
		fmt.Fprintln(p.w)
		var more []string
		for i := fitting; i < len(row); i++ {
			if row[i] != "-" {
				more = append(more, p.tint(colour(i), row[i]))
			}
		}
		for _, rest := range wrapped(strings.Join(more, "  "), p.terminal.width-4) {
			fmt.Fprintln(p.w, "    "+rest)
		}
	}
	line(headings, func(int) string { return "1" })
	for _, row := range rows {
		line(row, func(i int) string { return colour(headings[i], row[i]) })
	}
}

// sheet prints names and values for a terminal. Long values continue below their beginning.
func (p *printer) sheet(rows [][2]string) {
	width := 0
	for _, row := range rows {
		width = max(width, utf8.RuneCountInString(row[0]))
	}
	for _, row := range rows {
		name, value := row[0], row[1]
		for _, part := range wrapped(brief(value), max(p.terminal.width-width-2, 20)) {
			pad := strings.Repeat(" ", width-utf8.RuneCountInString(name)+2)
			fmt.Fprintln(p.w, p.tint("1", name)+pad+p.tint(colour(row[0], value), part))
			name = ""
		}
	}
}

// unfolded returns the members of a document by name, and those of its members by their paths, three levels deep.
// Objects that lie deeper are JSON.
func unfolded(d document) (rows [][2]string) {
	const most = 3
	var unfold func(path string, d document, level int)
	unfold = func(path string, d document, level int) {
		for _, name := range names(d) {
			if inner, ok := d[name].(map[string]any); ok && level < most {
				unfold(path+name+".", inner, level+1)
				continue
			}
			rows = append(rows, [2]string{path + name, text(d[name])})
		}
	}
	unfold("", d, 1)
	return rows
}

// wrapped breaks a text into lines at spaces, or where a word is longer than a line.
func wrapped(s string, width int) (lines []string) {
	line, used := "", 0
	for word := range strings.SplitSeq(s, " ") {
		n := shownWidth(word)
		if used > 0 && used+1+n > width {
			lines, line, used = append(lines, line), "", 0
		}
		for ; n > width && !strings.Contains(word, "\x1b"); n -= width {
			runes := []rune(word)
			lines, word = append(lines, string(runes[:width])), string(runes[width:])
		}
		if used > 0 {
			line, used = line+" ", used+1
		}
		line, used = line+word, used+n
	}
	if line != "" || len(lines) == 0 && s != "" {
		lines = append(lines, line)
	}
	return lines
}

// tints are the marks of colours.
var tints = regexp.MustCompile("\x1b\\[[0-9]*m")

// shownWidth returns the number of columns that a text takes.
func shownWidth(s string) int { return utf8.RuneCountInString(tints.ReplaceAllString(s, "")) }

// happened are members with a time that matters by how long ago it was.
var happened = []string{
	"updatedAt", "createdAt", "failedAt", "since", "seen", "lastUsed", "firstSeen", "oldestDue", "openSince",
}

// brief writes the value of a member for a terminal: past times as ages, and valid secrets by their ends.
func (p *printer) brief(path string, v any) string {
	s := text(v)
	if each, ok := v.([]any); ok && path == "valid" {
		var ends []string
		for _, one := range each {
			end := "for ever"
			if d, ok := one.(map[string]any); ok && d["until"] != nil {
				end = "until " + brief(text(d["until"]))
			}
			ends = append(ends, end)
		}
		return strings.Join(ends, ", ")
	}
	at, err := time.Parse(time.RFC3339, s)
	if err == nil && !p.now.IsZero() && slices.Contains(happened, path) && !at.After(p.now.Add(time.Second)) {
		return ago(p.now.Sub(at))
	}
	return brief(s)
}

// ago returns an age as text.
func ago(d time.Duration) string {
	const day = 24 * time.Hour
	for _, u := range []struct {
		unit time.Duration
		name string
		most int
	}{{time.Second, "s", 120}, {time.Minute, "m", 120}, {time.Hour, "h", 48}} {
		if n := int(d / u.unit); n < u.most {
			return fmt.Sprintf("%d%s ago", max(n, 0), u.name)
		}
	}
	return fmt.Sprintf("%dd ago", d/day)
}

var (
	wholeSecond = regexp.MustCompile(`(:\d\d)\.000(Z|[+-]\d\d:\d\d)$`)
	fraction    = regexp.MustCompile(`^-?\d+\.\d{4,}$`)
	fine        = regexp.MustCompile(`^([0-9]+h)?([0-9]+m)?[0-9]+\.[0-9]{3,}m?s$`)
)

// brief shortens values that are too exact for the eye: whole seconds, fractions, and durations.
func brief(s string) string {
	switch {
	case wholeSecond.MatchString(s):
		return wholeSecond.ReplaceAllString(s, "$1$2")
	case fraction.MatchString(s):
		if f, err := json.Number(s).Float64(); err == nil {
			return strings.TrimRight(strings.TrimRight(strconv.FormatFloat(f, 'f', 4, 64), "0"), ".")
		}
	case fine.MatchString(s):
		if d, err := time.ParseDuration(s); err == nil {
			return d.Round(max(d.Truncate(time.Second)/100, 100*time.Microsecond)).String()
		}
	}
	return s
}

// colours are those of states.
var colours = map[string]string{
	"scheduled": "32", "delivered": "32", "ready": "32", "paused": "33", "retried": "33", "retrying": "33", "missed": "33",
	"failed": "31", "buried": "31", "dead": "31", "open": "31", "down": "31", "finished": "2",
}

// colour returns the colour of a value under a heading or beside a name: states have colours.
func colour(of, value string) string {
	if !slices.Contains([]string{"state", "what", "fact", "code"}, strings.ToLower(of)) {
		return ""
	}
	return colours[value]
}

// tint colours a text on a terminal that has colours.
func (p *printer) tint(code, s string) string {
	if !p.terminal.colour || code == "" || s == "" {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}
