package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// patch replaces a text in a file, which must have it once.
type patch struct{ old, replacement string }

// overlay has the patches of Go's own files that make a run depend on nothing but its seed. Beside
// the randomness, real time can change the order in which goroutines run: the runtime's monitor preempts those that
// run for long, takes the processor from those that are in a system call for long, and wakes goroutines of its own; and
// a mutex is handed over in another manner after a long wait. The heap begins at a random address, and addresses decide
// the order in maps with pointers as keys. Addresses may still differ by the runtime's own allocations, and decide the
// order in which a context ends its children. Some packages take random numbers when the program starts, before the
// test has set their seed.
var overlay = map[string][]patch{
	"runtime/rand.go": {
		{"\tglobalRand.state.Init(*seed)\n", "\t*seed = [32]byte{1}\n\tglobalRand.state.Init(*seed)\n"},
		{
			"\tmp := getg().m\n\tc := &mp.chacha8\n",
			"\tif simulated != 0 && getg().bubble != nil {\n" +
				"\t\treturn uint64(simulatedRand())<<32 | uint64(simulatedRand())\n\t}\n" +
				"\tmp := getg().m\n\tc := &mp.chacha8\n",
		},
	},
	"runtime/malloc.go": {{"randomizeHeapBase = goexperiment", "randomizeHeapBase = false && goexperiment"}},
	"runtime/select.go": {{"j := cheaprandn(uint32(norder + 1))", "j := simulatedRandn(uint32(norder + 1))"}},
	"runtime/time.go":   {{"t.rand = cheaprand()", "t.rand = simulatedRandn(1<<32 - 1)"}},
	"runtime/sema.go": {{
		"func internal_sync_nanotime() int64 {\n",
		"func internal_sync_nanotime() int64 {\n\tif bubble := getg().bubble; bubble != nil {\n\t\treturn bubble.now\n\t}\n",
	}},
	"context/context.go": {
		{"children map[canceler]struct{} // set", "last     uint64\n\tchildren map[canceler]uint64 // set"},
		{"p.children = make(map[canceler]struct{})", "p.children = make(map[canceler]uint64)"},
		{"p.children[child] = struct{}{}", "p.last++\n\t\t\tp.children[child] = p.last"},
		{"for child := range c.children {", "for _, child := range inOrder(c.children) {"},
	},
	"crypto/internal/sysrand/rand.go": {{"\tif err := read(b); err != nil", "\tif err := counted(b); err != nil"}},
	"runtime/proc.go": {{
		"\t\tusleep(delay)\n",
		"\t\tusleep(1000000)\n\t\tif delay > 0 {\n\t\t\tcontinue\n\t\t}\n",
	}},
}

// added is appended to the patched files.
var added = map[string]string{
	"runtime/rand.go": randomSource, "context/context.go": orderSource, "crypto/internal/sysrand/rand.go": countSource,
}

const orderSource = `
// inOrder returns children in the order in which they were made.
func inOrder(children map[canceler]uint64) (all []canceler) {
	for child, made := range children {
		i := len(all)
		for all = append(all, nil); i > 0 && children[all[i-1]] > made; i-- {
			all[i] = all[i-1]
		}
		all[i] = child
	}
	return all
}
`

const countSource = `
var count atomic.Uint32

// counted fills b with other numbers at each call, in place of random ones: packages take some as they are initialised.
func counted(b []byte) error {
	for i := range b {
		b[i] = byte(count.Add(1) * 0x9e3779b1 >> 24)
	}
	return nil
}
`

const randomSource = `
// simulated is the state of the one source of randomness of all goroutines in bubbles; 0 if each thread has its own.
var simulated uint64

//go:nosplit
func simulatedRand() uint32 {
	simulated += 0xa0761d6478bd642f
	hi, lo := math.Mul64(simulated, simulated^0xe7037ed1a0b428db)
	return uint32(hi ^ lo)
}

//go:nosplit
func simulatedRandn(n uint32) uint32 {
	if simulated == 0 || getg().bubble == nil {
		return cheaprandn(n)
	}
	return uint32((uint64(simulatedRand()) * uint64(n)) >> 32)
}

// simulate also begins to count the turns of goroutines anew: at some of them, the queue of all processors comes first.
//
//go:linkname simulate
func simulate(seed uint64) {
	simulated = seed
	getg().m.p.ptr().schedtick = 1
}
`

// gocronPatches let the other goroutines run while gocron, at its end, asks again and again whether its jobs have
// ended. On one processor they would wait until the operating system's time says so.
var gocronPatches = []patch{
	{"import (\n", "import (\n\t\"runtime\"\n"},
	{
		"\t\t\tcase <-waitForLimitMode:\n\t\t\t\tcount++\n\t\t\tdefault:\n",
		"\t\t\tcase <-waitForLimitMode:\n\t\t\t\tcount++\n\t\t\tdefault:\n\t\t\t\truntime.Gosched()\n",
	},
}

const gocron = "github.com/go-co-op/gocron/v2"

// program is the simulation, built.
type program struct {
	root       string // the repository
	folder     string // for temporary files
	executable string
}

func (p program) remove() { _ = os.RemoveAll(p.folder) }

// build builds the simulation of the repository around the working directory. It takes other files instead of some.
func build(ctx context.Context, quick bool, instead map[string]string) (p program, err error) {
	mod, err := goEnv(ctx, "GOMOD")
	if err != nil {
		return p, err
	}
	p.root = filepath.Dir(mod)
	if p.folder, err = os.MkdirTemp("", "carillon-sim-"); err != nil {
		return p, err
	}
	defer func() {
		if err != nil {
			p.remove()
		}
	}()
	p.executable = filepath.Join(p.folder, "sim.test")
	args := []string{"test", "-c", "-o", p.executable}
	replaced := maps.Clone(instead)
	if replaced == nil {
		replaced = map[string]string{}
	}
	if !quick {
		more, err := repeatable(ctx, p.root, p.folder, replaced)
		if err != nil {
			return p, err
		}
		args = append(args, more...)
	}
	overlayFile := filepath.Join(p.folder, "overlay.json")
	if err := writeOverlay(overlayFile, replaced); err != nil {
		return p, err
	}
	args = append(args, "-overlay", overlayFile)
	_, err = command(ctx, p.root, append(args, "./sim")...)
	return p, err
}

// writeOverlay writes a file for the option -overlay of Go's commands.
func writeOverlay(file string, replaced map[string]string) error {
	encoded, err := json.Marshal(map[string]any{"Replace": replaced})
	if err != nil {
		return err
	}
	return os.WriteFile(file, encoded, 0o600)
}

// repeatable writes the patched sources, adds them to the replaced ones, and returns the other arguments of a build
// with them.
func repeatable(ctx context.Context, root, folder string, replaced map[string]string) ([]string, error) {
	goroot, err := goEnv(ctx, "GOROOT")
	if err != nil {
		return nil, err
	}
	if err := replace(goroot, folder, overlay, added, replaced); err != nil {
		return nil, fmt.Errorf("%w; run with --quick", err)
	}
	dir, err := command(ctx, root, "list", "-m", "-f", "{{.Dir}}", gocron)
	if err != nil {
		return nil, err
	}
	copied := filepath.Join(folder, "gocron")
	if err := os.CopyFS(copied, os.DirFS(dir)); err != nil {
		return nil, err
	}
	const executor = "executor.go"
	if err := os.Remove(filepath.Join(copied, executor)); err != nil { // the copy is read-only
		return nil, err
	}
	if err := rewrite(filepath.Join(dir, executor), filepath.Join(copied, executor), gocronPatches, ""); err != nil {
		return nil, err
	}
	modFile := filepath.Join(folder, "go.mod")
	for from, to := range map[string]string{"go.mod": modFile, "go.sum": filepath.Join(folder, "go.sum")} {
		b, err := os.ReadFile(filepath.Join(root, from))
		if err != nil {
			return nil, err
		}
		if from == "go.mod" {
			b = fmt.Appendf(b, "\nreplace %s => %s\n", gocron, copied)
		}
		if err := os.WriteFile(to, b, 0o600); err != nil {
			return nil, err
		}
	}
	return []string{"-tags", "replay", "-modfile", modFile, "-trimpath"}, nil
}

// replace writes patched files of Go's own source to a folder, each with its appendix, and adds them to the
// replaced ones.
func replace(goroot, folder string, files map[string][]patch, more, replaced map[string]string) error {
	for name, patches := range files {
		original, patched := filepath.Join(goroot, "src", name), filepath.Join(folder, strings.ReplaceAll(name, "/", "-"))
		if err := rewrite(original, patched, patches, more[name]); err != nil {
			return err
		}
		replaced[original] = patched
	}
	return nil
}

// rewrite writes a file's text with patches.
func rewrite(from, to string, patches []patch, more string) error {
	b, err := os.ReadFile(from) //nolint:gosec // Go's own source, or a module's
	if err != nil {
		return err
	}
	text := string(b)
	for _, p := range patches {
		if strings.Count(text, p.old) != 1 {
			return fmt.Errorf("%s has another form than the one that can be patched", from)
		}
		text = strings.Replace(text, p.old, p.replacement, 1)
	}
	return os.WriteFile(to, []byte(text+more), 0o600)
}

func goEnv(ctx context.Context, name string) (string, error) {
	value, err := command(ctx, ".", "env", name)
	if err == nil && (value == "" || value == os.DevNull) {
		err = errors.New("run it in the repository")
	}
	return value, err
}

// command runs Go and returns its output.
func command(ctx context.Context, dir string, args ...string) (string, error) {
	c := exec.CommandContext(ctx, "go", args...)
	c.Dir = dir
	var failure bytes.Buffer
	c.Stderr = &failure
	out, err := c.Output()
	if err != nil {
		return "", fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, &failure)
	}
	return strings.TrimSpace(string(out)), nil
}
