// The program release makes all files of a release in one folder: archives, packages for Debian and RPM, an image for
// two kinds of processors, the Helm chart, lists of components and checksums. It needs Go and the modules, but no
// network and no container engine. The same commit always makes the same files.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// release is one run.
type release struct {
	root string    // of the repository
	work string    // a temporary folder
	out  string    // the folder of the results
	v    string    // the version, without a v before it
	tag  string    // the version, as the program prints it
	rev  string    // the commit
	at   time.Time // the time of the commit, and of all files in the results
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(args []string) (err error) {
	f := flag.NewFlagSet("release", flag.ContinueOnError)
	root := f.String("root", "../..", "`FOLDER`: The repository.")
	out := f.String("out", "", "`FOLDER`: Where the results go; it is emptied first. (ROOT/dist)")
	version := f.String("version", "",
		"`VERSION`: Such as v1.2.3, which must be the commit's tag. (a snapshot, named by git)")
	platforms := f.String("platforms", "linux/amd64,linux/arm64,darwin/arm64",
		"`LIST`: Systems and processors to build for. Packages and images are made for Linux only.")
	only := f.String("only", "", "`KIND`: Make nothing but the image. (all)")
	push := f.String("push", "",
		"`REPOSITORY`: Registry and name that the image is pushed to, such as ghcr.io/you/carillon.")
	if err := f.Parse(args); err != nil {
		return err
	}
	if *only != "" && *only != "image" {
		return fmt.Errorf("-only is %q; it must be image, or nothing", *only)
	}
	r, err := newRelease(*root, *out, *version)
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(r.work) }()

	var programs []program
	for name := range strings.SplitSeq(*platforms, ",") {
		system, processor, ok := strings.Cut(strings.TrimSpace(name), "/")
		if !ok {
			return fmt.Errorf("-platforms has %q; it must be SYSTEM/PROCESSOR, such as linux/amd64", name)
		}
		if *only == "image" && system != "linux" {
			continue
		}
		p, err := r.build(system, processor)
		if err != nil {
			return err
		}
		programs = append(programs, p)
	}
	if *only == "" {
		if err := r.files(programs); err != nil {
			return err
		}
	}
	digest, err := r.image(programs, *push)
	if err != nil {
		return err
	}
	if err := r.checksums(); err != nil {
		return err
	}
	fmt.Printf("carillon %s is in %s; the image is %s\n", r.tag, r.out, digest)
	return nil
}

// newRelease determines the version and commit, and empties the folder of the results.
func newRelease(root, out, version string) (*release, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, err
	}
	if out == "" {
		out = filepath.Join(root, "dist")
	}
	if out, err = filepath.Abs(out); err != nil {
		return nil, err
	}
	git := func(args ...string) string {
		text, gitErr := exec.Command("git", append([]string{"-C", root}, args...)...).Output()
		if gitErr != nil && err == nil {
			err = fmt.Errorf("git %s: %w", strings.Join(args, " "), gitErr)
		}
		return strings.TrimSpace(string(text))
	}
	r := &release{root: root, out: out, rev: git("rev-parse", "HEAD")}
	seconds := git("log", "-1", "--format=%cI")
	described := git("describe", "--tags", "--always", "--dirty")
	if err != nil {
		return nil, err
	}
	if r.at, err = time.Parse(time.RFC3339, seconds); err != nil {
		return nil, err
	}
	r.at = r.at.UTC()
	if r.tag, err = versionOf(version, described); err != nil {
		return nil, err
	}
	r.v = strings.TrimPrefix(r.tag, "v")
	if err := os.RemoveAll(r.out); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(r.out, 0o755); err != nil {
		return nil, err
	}
	r.work, err = os.MkdirTemp("", "carillon-release-")
	return r, err
}

var semantic = regexp.MustCompile(`^v\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?$`)

// versionOf returns the version of a commit that git describes. If a version is asked for, it must be the commit's tag.
// Otherwise the description is the version; it is made a semantic version if the commit follows no tag.
func versionOf(asked, described string) (string, error) {
	switch {
	case asked != "" && !semantic.MatchString(asked):
		return "", fmt.Errorf("-version is %q; it must be a semantic version with a v, such as v1.2.3", asked)
	case asked != "" && asked != described:
		return "", fmt.Errorf("-version is %s, but the commit is %s: tag it, and commit all changes", asked, described)
	case semantic.MatchString(described):
		return described, nil
	default:
		return "v0.0.0-g" + described, nil
	}
}
