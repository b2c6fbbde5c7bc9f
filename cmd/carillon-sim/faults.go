package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Seeded faults are patches of the real code: each must be caught by the suite of stores, by the simulation, or by the
// search of docs/protocol. The table of the tests that catch each is in docs/verification.md.
const (
	faultsFolder = "sim/faults"
	tableFile    = "docs/verification.md"
	tableHead    = "| fault | rule of the search | suite of stores | recorded commands | kept plan | random history |"
)

// seeded is a seeded fault. Its patch begins with a text, which tells the effect of the fault, and may have a line
// "Rule: " with the rule of docs/protocol that the patch takes out of the code.
type seeded struct {
	name, text, rule string
	files            []string // that the patch changes
}

var changedFile = regexp.MustCompile(`(?m)^\+\+\+ b/(.*)$`)

// readFaults returns the faults of the names, or all if there is no name, in order.
func readFaults(root string, names []string) (all []seeded, err error) {
	patches, err := filepath.Glob(filepath.Join(root, faultsFolder, "*.patch"))
	if err != nil {
		return nil, err
	}
	for _, file := range patches { // they are sorted
		f := seeded{name: strings.TrimSuffix(filepath.Base(file), ".patch")}
		if len(names) > 0 && !slices.Contains(names, f.name) {
			continue
		}
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		head, diff, _ := strings.Cut(string(b), "diff --git ")
		for line := range strings.Lines(head) {
			line = strings.TrimSpace(line)
			if rule, is := strings.CutPrefix(line, "Rule: "); is {
				f.rule = rule
			} else {
				f.text = strings.TrimSpace(f.text + " " + line)
			}
		}
		for _, changed := range changedFile.FindAllStringSubmatch(diff, -1) {
			f.files = append(f.files, changed[1])
		}
		all = append(all, f)
	}
	if len(names) > 0 && len(all) != len(names) {
		return nil, fmt.Errorf("--faults: %s has not all patches of %q", faultsFolder, names)
	}
	return all, nil
}

// patched writes the files of a fault, changed by its patch, to a folder. It returns them by the original's path.
func (f *seeded) patched(ctx context.Context, root, folder string) (map[string]string, error) {
	replaced := map[string]string{}
	for _, name := range f.files {
		original, changed := filepath.Join(root, name), filepath.Join(folder, name)
		b, err := os.ReadFile(original)
		if err == nil {
			err = os.MkdirAll(filepath.Dir(changed), 0o750)
		}
		if err == nil {
			err = os.WriteFile(changed, b, 0o600)
		}
		if err != nil {
			return nil, err
		}
		replaced[original] = changed
	}
	apply := exec.CommandContext(ctx, "git", "apply", "-C1", filepath.Join(root, faultsFolder, f.name+".patch"))
	apply.Dir = folder
	apply.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES="+filepath.Dir(folder))
	if out, err := apply.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%s.patch does not fit the code: %w\n%s", f.name, err, out)
	}
	return replaced, nil
}

// inStore reports whether a fault is in a store, or in the code that stores share.
func (f *seeded) inStore() bool {
	return slices.ContainsFunc(f.files, func(name string) bool {
		folder := filepath.Dir(name)
		return folder == "store" || folder == "store/mongodb"
	})
}

// caught tells the tests that have caught a fault; "–" is nothing, and a number of histories in parentheses those that
// found nothing.
type caught struct{ suite, commands, kept, random string }

// notTried stands for a test that did not run.
const notTried = "not tried"

// any reports whether anything has caught the fault.
func (c caught) any() bool {
	return slices.ContainsFunc([]string{c.suite, c.commands, c.kept, c.random}, func(by string) bool {
		return by != notTried && !strings.HasPrefix(by, "–")
	})
}

// row returns a fault's row of the table.
func (c caught) row(f *seeded) string {
	return fmt.Sprintf("| `%s`: %s | %s | %s | %s | %s | %s |",
		f.name, f.text, quoted(f.rule), c.suite, c.commands, c.kept, c.random)
}

// teeth tries faults one by one.
type teeth struct {
	options
	root  string
	out   io.Writer
	plain *search // of the code without faults
}

// tryFaults tries seeded faults, and writes the tests that catch each to the table. It fails if nothing catches one.
func tryFaults(ctx context.Context, out io.Writer, o options) error {
	mod, err := goEnv(ctx, "GOMOD")
	if err != nil {
		return err
	}
	t := &teeth{options: o, root: filepath.Dir(mod), out: out}
	faults, err := t.chosen()
	if err != nil {
		return err
	}
	if o.histories > 0 {
		plain, err := build(ctx, o.quick, nil)
		if err != nil {
			return err
		}
		defer plain.remove()
		t.plain = newSearch(o, plain, out)
	}
	fmt.Fprintln(out, tableHead)
	var missed []string
	for i := range faults {
		f := &faults[i]
		c, failure := t.try(ctx, f)
		if err := ctx.Err(); err != nil {
			return err
		}
		if failure != nil { // it does not build; the others are tried all the same
			err = errors.Join(err, fmt.Errorf("%s: %w", f.name, failure))
			continue
		}
		if !c.any() {
			missed = append(missed, f.name)
		}
		fmt.Fprintln(out, c.row(f))
		if err := writeRow(filepath.Join(t.root, tableFile), f.name, c.row(f)); err != nil {
			return err
		}
	}
	if len(missed) > 0 {
		err = errors.Join(err, fmt.Errorf("nothing catches %d faults: %q", len(missed), missed))
	}
	return err
}

// chosen returns the faults that the command line names. The table shows how far a run is: one with all faults begins
// with rows that say that nothing was tried, and "untried" are the faults of such rows, and those without a row.
func (t *teeth) chosen() ([]seeded, error) {
	if t.faults != "all" && t.faults != "untried" {
		return readFaults(t.root, strings.Split(t.faults, ","))
	}
	all, err := readFaults(t.root, nil)
	if err != nil {
		return nil, err
	}
	table := filepath.Join(t.root, tableFile)
	if t.faults == "untried" {
		b, err := os.ReadFile(table)
		return slices.DeleteFunc(all, func(f seeded) bool {
			_, row, known := strings.Cut(string(b), "| `"+f.name+"`: ")
			row, _, _ = strings.Cut(row, "\n")
			return known && !strings.HasSuffix(row, "| "+notTried+" |")
		}), err
	}
	for i := range all {
		untried := caught{notTried, notTried, notTried, notTried}
		if err := writeRow(table, all[i].name, untried.row(&all[i])); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func quoted(name string) string {
	if name == "" {
		return "–"
	}
	return "`" + name + "`"
}

// try builds the programs with a fault, and runs each until it has caught it or is over.
func (t *teeth) try(ctx context.Context, f *seeded) (c caught, err error) {
	folder, err := os.MkdirTemp("", "carillon-faults-")
	if err != nil {
		return c, err
	}
	defer func() { _ = os.RemoveAll(folder) }()
	replaced, err := f.patched(ctx, t.root, folder)
	if err != nil {
		return c, err
	}
	c = caught{"–", "–", notTried, notTried}
	if f.inStore() {
		c.commands = notTried
		if c.suite, err = t.test(ctx, folder, replaced, "./sim/mongosim", "TestInterrupted|TestStore"); err != nil {
			return c, err
		}
		if os.Getenv("CARILLON_TEST_MONGODB_URI") != "" { // as .ci/with-services sets it
			c.commands, err = t.test(ctx, folder, replaced, "./store/mongodb", "TestCommandsAreThoseOfTheModel")
			if err != nil {
				return c, err
			}
		}
	}
	if t.histories > 0 {
		c.kept, c.random, err = t.simulate(ctx, replaced)
	}
	return c, err
}

// suite is the part of TestStore that has all others.
const suite = "suite"

var failed = regexp.MustCompile(`--- FAIL: Test\w+/(?:` + suite + `/)?(.+) \(`)

// test runs tests with replaced files, and returns the name of a part that fails; "–" if none does.
func (t *teeth) test(ctx context.Context, folder string, replaced map[string]string, in, tests string) (string, error) {
	overlay := filepath.Join(folder, "overlay.json")
	if err := writeOverlay(overlay, replaced); err != nil {
		return "", err
	}
	run := exec.CommandContext(ctx, "go", "test", "-vet=off", "-tags", "services", "-overlay", overlay, "-count=3",
		"-failfast", "-timeout", "10m", "-run", "^("+tests+")$", in)
	run.Dir = t.root
	b, err := run.CombinedOutput()
	if err == nil {
		return "–", nil
	}
	for _, part := range failed.FindAllSubmatch(b, -1) {
		if name := string(part[1]); name != suite {
			return strings.ReplaceAll(name, "_", " "), nil
		}
	}
	switch {
	case bytes.Contains(b, []byte("panic: test timed out")):
		return "a test that does not end", nil
	default:
		return "", fmt.Errorf("%s %s: %w\n%s", in, tests, err, b)
	}
}

// simulate runs the kept plans, and new histories: each until one breaks a guarantee.
func (t *teeth) simulate(ctx context.Context, replaced map[string]string) (kept, random string, err error) {
	built, err := build(ctx, t.quick, replaced)
	if err != nil {
		return "", "", err
	}
	defer built.remove()
	s := newSearch(t.options, built, t.out)
	plans, err := filepath.Glob(filepath.Join(t.root, "sim", "testdata", "*.json"))
	if err != nil {
		return "", "", err
	}
	kept, random = "–", fmt.Sprintf("– (%d)", t.histories)
	i, rule, err := t.first(ctx, s, len(plans), func(i int) string { return "-sim.plan=" + plans[i] })
	if rule != "" {
		kept = fmt.Sprintf("%s: %s", strings.TrimSuffix(filepath.Base(plans[i]), ".json"), rule)
	}
	if err == nil {
		i, rule, err = t.first(ctx, s, t.histories, func(i int) string {
			return "-sim.first=" + strconv.FormatUint(t.seed+uint64(i), 10)
		})
		if rule != "" {
			random = fmt.Sprintf("%d: %s", i+1, rule)
		}
	}
	return kept, random, err
}

// first runs histories, several at a time, until one finds the fault. It returns the number of the first one that does,
// from 0, and the rule that it breaks; no rule if none does.
func (t *teeth) first(ctx context.Context, s *search, n int, history func(i int) string) (
	found int, rule string, err error) {
	var lock sync.Mutex
	next, end := 0, n // those at or after the end need not run
	take := func() (i int, more bool) {
		lock.Lock()
		defer lock.Unlock()
		i, next = next, next+1
		return i, i < end
	}
	var group sync.WaitGroup
	for range t.workers {
		group.Go(func() {
			for i, more := take(); more; i, more = take() {
				broken, failure := t.finds(ctx, s, history(i))
				lock.Lock()
				if failure != nil {
					err, end = errors.Join(err, failure), 0
				} else if broken != "" && i < end {
					rule, end = broken, i
				}
				lock.Unlock()
			}
		})
	}
	group.Wait()
	return end, rule, err
}

// finds runs a history, and returns a rule that it breaks; none if it breaks one without the fault too.
func (t *teeth) finds(ctx context.Context, s *search, history string) (rule string, err error) {
	report, err := s.one(ctx, []string{history})
	if err = errors.Join(err, ctx.Err()); err != nil || len(report.Broken) == 0 {
		return "", err
	}
	plain, err := t.plain.one(ctx, []string{history})
	if err = errors.Join(err, ctx.Err()); err != nil || len(plain.Broken) > 0 {
		return "", err
	}
	return report.Broken[0].Rule, nil
}

// writeRow replaces the row of a fault in the table, or adds it in order.
func writeRow(file, name, row string) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	text := string(b)
	head := strings.Index(text, tableHead+"\n")
	if head < 0 {
		return fmt.Errorf("%s has no table %q", file, tableHead)
	}
	begin := head + len(tableHead) + 1
	begin += strings.Index(text[begin:], "\n") + 1
	end := begin
	rows := map[string]string{}
	for line := range strings.Lines(text[begin:]) {
		if !strings.HasPrefix(line, "| ") {
			break
		}
		rows[strings.Split(line, "`")[1]] = line
		end += len(line)
	}
	rows[name] = row + "\n"
	var sorted strings.Builder
	for _, one := range slices.Sorted(maps.Keys(rows)) {
		sorted.WriteString(rows[one])
	}
	return os.WriteFile(file, []byte(text[:begin]+sorted.String()+text[end:]), 0o600)
}
