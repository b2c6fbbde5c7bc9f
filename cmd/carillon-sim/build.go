package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// patch replaces a text in a file, which must have it once.
type patch struct{ old, replacement string }

// runtimePatches seed the runtime's randomness. Threads of the runtime keep their own sources, which depend on nothing
// but the seed of the process; goroutines share one, see simulate.
var runtimePatches = []patch{
	{"\tglobalRand.state.Init(*seed)\n", "\t*seed = [32]byte{1}\n\tglobalRand.state.Init(*seed)\n"},
	{
		"\tmp := getg().m\n\tc := &mp.chacha8\n",
		"\tmp := getg().m\n\tif simulated != 0 && getg() == mp.curg {\n" +
			"\t\treturn uint64(simulatedRand())<<32 | uint64(simulatedRand())\n\t}\n\tc := &mp.chacha8\n",
	},
	{
		"func cheaprand() uint32 {\n\tmp := getg().m\n",
		"func cheaprand() uint32 {\n\tmp := getg().m\n\tif simulated != 0 && getg() == mp.curg {\n" +
			"\t\treturn simulatedRand()\n\t}\n",
	},
}

// runtimeSource is appended to the patched file.
const runtimeSource = `
// simulated is the state of the one source of randomness of all goroutines; 0 if each thread has its own.
var simulated uint64

//go:nosplit
func simulatedRand() uint32 {
	simulated += 0xa0761d6478bd642f
	hi, lo := math.Mul64(simulated, simulated^0xe7037ed1a0b428db)
	return uint32(hi ^ lo)
}

//go:linkname simulate
func simulate(seed uint64) { simulated = seed }
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

// build builds the simulation; remove deletes it.
func build(ctx context.Context, root string, quick bool) (program string, remove func(), err error) {
	folder, err := os.MkdirTemp("", "carillon-sim-")
	if err != nil {
		return "", nil, err
	}
	remove = func() { _ = os.RemoveAll(folder) }
	program = filepath.Join(folder, "sim.test")
	args := []string{"test", "-c", "-o", program}
	if !quick {
		more, err := repeatable(ctx, root, folder)
		if err != nil {
			remove()
			return "", nil, err
		}
		args = append(args, more...)
	}
	if _, err := command(ctx, root, append(args, "./sim")...); err != nil {
		remove()
		return "", nil, err
	}
	return program, remove, nil
}

// repeatable writes the patched sources, and returns the arguments of a build with them.
func repeatable(ctx context.Context, root, folder string) ([]string, error) {
	goroot, err := goEnv(ctx, "GOROOT")
	if err != nil {
		return nil, err
	}
	original, patched := filepath.Join(goroot, "src/runtime/rand.go"), filepath.Join(folder, "rand.go")
	if err := rewrite(original, patched, runtimePatches, runtimeSource); err != nil {
		return nil, err
	}
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{original: patched}})
	if err != nil {
		return nil, err
	}
	overlayFile := filepath.Join(folder, "overlay.json")
	if err := os.WriteFile(overlayFile, overlay, 0o600); err != nil {
		return nil, err
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
	return []string{"-tags", "replay", "-overlay", overlayFile, "-modfile", modFile, "-trimpath"}, nil
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
			return fmt.Errorf("%s has another form than the one that can be patched; run with --quick", from)
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

// command runs Go and returns what it prints.
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
