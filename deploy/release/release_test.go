package main

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

// patience limits every wait. Nothing should take nearly as long.
const patience = 5 * time.Minute

// TestRelease makes a release of the program twice, and uses its files as users do.
func TestRelease(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	repository := strings.TrimPrefix(server.URL, "http://") + "/carillon"

	first, second := t.TempDir(), t.TempDir()
	for _, out := range []string{first, second} {
		if err := run([]string{"-out", out, "-platforms", "linux/amd64,linux/arm64", "-push", repository}); err != nil {
			t.Fatal(err)
		}
	}
	sums := sumsOf(t, first)
	if again := sumsOf(t, second); !slices.Equal(sums, again) {
		t.Errorf("two releases of one commit differ:\n%s\n%s", strings.Join(sums, "\n"), strings.Join(again, "\n"))
	}
	listed, err := os.ReadFile(filepath.Join(first, "SHA256SUMS"))
	if err != nil {
		t.Fatal(err)
	}
	for _, sum := range sums {
		if !strings.HasSuffix(sum, "SHA256SUMS") && !strings.Contains(string(listed), sum+"\n") {
			t.Errorf("SHA256SUMS lacks %s", sum)
		}
	}
	if len(sums) != 11 {
		t.Errorf("the release has %q, want two archives, four packages, an image, a chart, two lists of components and the sums", sums)
	}

	image := imageIn(t, one(t, first, "*_image.tar"))
	t.Run("image", func(t *testing.T) { checkImage(t, image) })
	t.Run("container", func(t *testing.T) { checkContainer(t, one(t, first, "*_image.tar")) })
	t.Run("push", func(t *testing.T) {
		tag := regexp.MustCompile(`_(.*)_image`).FindStringSubmatch(filepath.Base(one(t, first, "*_image.tar")))[1]
		to, err := name.NewTag(repository + ":" + tag)
		if err != nil {
			t.Fatal(err)
		}
		pulled, err := remote.Image(to, remote.WithPlatform(v1.Platform{OS: "linux", Architecture: "amd64"}))
		if err != nil {
			t.Fatal(err)
		}
		got, _ := pulled.Digest()
		if want, _ := image.Digest(); got != want {
			t.Errorf("the registry has %s, want %s", got, want)
		}
	})
	t.Run("other processor", func(t *testing.T) { checkOther(t, first) })
	t.Run("archive", func(t *testing.T) { checkArchive(t, one(t, first, "*_linux_amd64.tar.gz")) })
	t.Run("debian", func(t *testing.T) { checkPackage(t, one(t, first, "*_amd64.deb")) })
	t.Run("systemd", func(t *testing.T) { checkSystemd(t, one(t, first, "*_amd64.deb")) })
	t.Run("rpm", func(t *testing.T) {
		path := one(t, first, "*x86_64.rpm")
		output(t, "rpm", "--checksig", "--nosignature", path)
		said := output(t, "rpm", "--query", "--package", "--list", "--verbose", path)
		for _, want := range []string{
			`-rwxr-xr-x .* root +root .* /usr/bin/carillon\n`, `-rw------- .* root +root .* /etc/carillon/carillon.env\n`,
			`-rw-r--r-- .* /usr/lib/systemd/system/carillon.service\n`, `-rw-r--r-- .* /usr/share/man/man1/carillon.1.gz\n`,
		} {
			if !regexp.MustCompile(want).MatchString(said) {
				t.Errorf("the package has no %s:\n%s", want, said)
			}
		}
	})
	t.Run("chart", func(t *testing.T) {
		chart := untar(t, one(t, first, "*.tgz"))
		if text := string(chart["carillon/Chart.yaml"]); strings.Contains(text, " 0.0.0\n") || !strings.Contains(text, "appVersion: ") {
			t.Errorf("the chart does not have the release's version:\n%s", text)
		}
		if chart["carillon/templates/_pod.tpl"] == nil || chart["carillon/ci/sqlite-values.yaml"] != nil {
			t.Error("the chart has not the files that it should have")
		}
	})
}

// checkOther: the program for another processor delivers there. Debian's emulator replaces the processor.
func checkOther(t *testing.T, folder string) {
	one(t, folder, "*_arm64.deb")
	one(t, folder, "*.aarch64.rpm")
	archive := one(t, folder, "*_linux_arm64.tar.gz")
	program := filepath.Join(t.TempDir(), "carillon")
	place(t, program, untar(t, archive)[strings.TrimSuffix(filepath.Base(archive), ".tar.gz")+"/carillon"], 0o755)
	if said := output(t, "qemu-aarch64-static", program, "demo"); !strings.Contains(said, "11 of 11 delivered") {
		t.Errorf("the demo prints\n%s", said)
	}
}

func one(t *testing.T, folder, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(folder, pattern))
	if err != nil || len(found) != 1 {
		t.Fatalf("%s: %q, %v", pattern, found, err)
	}
	return found[0]
}

// sumsOf lists the files of a folder with their sums, as sha256sum does.
func sumsOf(t *testing.T, folder string) (sums []string) {
	t.Helper()
	files, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		content, err := os.ReadFile(filepath.Join(folder, f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		sums = append(sums, fmt.Sprintf("%x  %s", sha256.Sum256(content), f.Name()))
	}
	return sums
}

// untar reads an archive.
func untar(t *testing.T, path string) map[string][]byte {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var r io.Reader = bufio.NewReader(file)
	if start, err := r.(*bufio.Reader).Peek(2); err == nil && bytes.Equal(start, []byte{0x1f, 0x8b}) {
		if r, err = gzip.NewReader(r); err != nil {
			t.Fatal(err)
		}
	}
	all := map[string][]byte{}
	for archive := tar.NewReader(r); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if all[h.Name], err = io.ReadAll(archive); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
	}
}

// imageIn reads the image from its archive, as a tool that supports OCI does.
func imageIn(t *testing.T, path string) v1.Image {
	t.Helper()
	folder := t.TempDir()
	files := untar(t, path)
	for name, content := range files {
		place(t, filepath.Join(folder, name), content, 0o644)
	}
	index, err := layout.ImageIndexFromPath(folder)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil || len(manifest.Manifests) != 1 {
		t.Fatal(manifest, err)
	}
	index, err = index.ImageIndex(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	if manifest, err = index.IndexManifest(); err != nil {
		t.Fatal(err)
	}
	var image v1.Image
	var platforms []string
	for _, m := range manifest.Manifests {
		platforms = append(platforms, m.Platform.String())
		one, err := index.Image(m.Digest)
		if err != nil {
			t.Fatal(err)
		}
		file, err := one.ConfigFile()
		if err != nil || file.OS+"/"+file.Architecture != m.Platform.String() {
			t.Fatalf("the image of %s is of %s/%s, %v", m.Platform, file.OS, file.Architecture, err)
		}
		if m.Platform.Architecture == "amd64" {
			image = one
		}
	}
	if want := []string{"linux/amd64", "linux/arm64"}; !slices.Equal(platforms, want) {
		t.Fatalf("the image is for %q, want %q", platforms, want)
	}
	// Older versions of Docker find the same image through a file of their own.
	var old []struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	if err := json.Unmarshal(files["manifest.json"], &old); err != nil || len(old) != 1 {
		t.Fatal(old, err)
	}
	for _, blob := range append(old[0].Layers, old[0].Config) {
		if files[blob] == nil {
			t.Errorf("manifest.json names %s, which is not there", blob)
		}
	}
	return image
}

// checkImage compares the image's settings with those of docker/Dockerfile, and runs it.
func checkImage(t *testing.T, image v1.Image) {
	file, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("../../docker/Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	stages := strings.Split(string(text), "\nFROM ")
	for _, setting := range regexp.MustCompile(`CARILLON_\w+=\S+`).FindAllString(stages[len(stages)-1], -1) {
		if !slices.Contains(file.Config.Env, setting) {
			t.Errorf("the Dockerfile has %s, the image has %q", setting, file.Config.Env)
		}
	}
	if c := file.Config; c.User != "65532:65532" || !slices.Equal(c.Entrypoint, []string{"/carillon"}) || !slices.Equal(c.Cmd, []string{"serve"}) {
		t.Errorf("the image runs %q %q as %s", c.Entrypoint, c.Cmd, c.User)
	}

	root := t.TempDir()
	content := mutate.Extract(image)
	defer content.Close()
	for archive := tar.NewReader(content); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(root, h.Name)
		if h.Typeflag == tar.TypeDir {
			if err := errors.Join(os.MkdirAll(path, 0o755), os.Chmod(path, h.FileInfo().Mode())); err != nil {
				t.Fatal(err)
			}
			owned(t, path, h.Uid)
			continue
		}
		text, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		place(t, path, text, h.FileInfo().Mode())
	}
	certificates, err := os.ReadFile(filepath.Join(root, "etc/ssl/certs/ca-certificates.crt"))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for block, rest := pem.Decode(certificates); block != nil; block, rest = pem.Decode(rest) {
		n++
	}
	if n < 80 {
		t.Errorf("the image has %d certificates", n)
	}
	serve(t, root, "/", file.Config.Env, append(slices.Clone(file.Config.Entrypoint), file.Config.Cmd...))
}

// checkContainer loads the image into a container engine with a storage of its own, and has the demo deliver in a
// container.
func checkContainer(t *testing.T, archive string) {
	folder, err := os.MkdirTemp("", "podman") // Podman refuses long paths
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	podman := func(args ...string) string {
		return output(t, "podman", append([]string{
			"--root=" + folder + "/root", "--runroot=" + folder + "/run", "--storage-driver=vfs",
			"--cgroup-manager=cgroupfs", "--runtime=runc", // which need no systemd, and work in a container too
		}, args...)...)
	}
	_, image, _ := strings.Cut(podman("load", "--quiet", "--input="+archive), "Loaded image: ")
	// More than the limits of this process may be forbidden.
	said := podman("run", "--rm", "--network=none", "--read-only", "--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024",
		strings.TrimSpace(image), "demo")
	if !strings.Contains(said, "11 of 11 delivered") {
		t.Errorf("in a container, the demo prints\n%s", said)
	}
}

// checkArchive runs the program of an archive.
func checkArchive(t *testing.T, path string) {
	files := untar(t, path)
	folder := strings.TrimSuffix(filepath.Base(path), ".tar.gz") + "/"
	for _, name := range []string{"LICENSE", "README.md", "carillon.1", "carillon.bash", "carillon.zsh", "carillon.fish"} {
		if len(files[folder+name]) == 0 {
			t.Errorf("the archive has no %s", name)
		}
	}
	program := filepath.Join(t.TempDir(), "carillon")
	place(t, program, files[folder+"carillon"], 0o755)
	version := regexp.MustCompile(`_(.*)_linux`).FindStringSubmatch(filepath.Base(path))[1]
	if out, err := exec.Command(program, "--version").Output(); err != nil || !strings.HasPrefix(string(out), "carillon v"+version) {
		t.Errorf("it says %s, %v", out, err)
	}
}

// checkPackage unpacks a package, verifies its unit with systemd, and runs the unit's command.
func checkPackage(t *testing.T, path string) {
	root := t.TempDir()
	output(t, "dpkg-deb", "-x", path, root)
	unit := filepath.Join(root, "usr/lib/systemd/system/carillon.service")
	// The package does not contain systemd's own units.
	if said := output(t, "systemd-analyze", "verify", "--man=no", "--root="+root, unit); strings.Contains(said, "carillon.service:") &&
		!strings.Contains(said, "Unit sysinit.target not found") {
		t.Errorf("systemd says %s", said)
	}
	output(t, "systemd-analyze", "security", "--offline=true", "--threshold=20", "--root="+root, "carillon.service")

	text, err := os.ReadFile(unit)
	if err != nil {
		t.Fatal(err)
	}
	setting := func(name string) string {
		found := regexp.MustCompile(`(?m)^` + name + `=(.*)$`).FindStringSubmatch(string(text))
		if found == nil {
			t.Fatalf("the unit has no %s", name)
		}
		return found[1]
	}
	environment, err := os.ReadFile(filepath.Join(root, setting("EnvironmentFile")))
	if err != nil {
		t.Fatal(err)
	}
	var variables []string
	for line := range strings.Lines(string(environment)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			variables = append(variables, line)
		}
	}
	state := "/var/lib/" + setting("StateDirectory")
	if setting("DynamicUser") != "yes" || setting("WorkingDirectory") != state {
		t.Errorf("it is not a user of its own, with the folder %s of its own", state)
	}
	if err := os.MkdirAll(filepath.Join(root, state), 0o755); err != nil {
		t.Fatal(err)
	}
	owned(t, filepath.Join(root, state), user)
	serve(t, root, state, append(variables, "CARILLON_LISTEN=127.0.0.1:0"), strings.Fields(setting("ExecStart")))
	if _, err := os.Stat(filepath.Join(root, state, "carillon.db")); err != nil {
		t.Error(err)
	}
}

// serve runs the service in a root folder, as a user of its own, until it serves, and stops it.
func serve(t *testing.T, root, folder string, environment, command []string) {
	t.Helper()
	if command[0] == "/carillon" { // the image's port may be in use here
		environment = append(environment, "CARILLON_LISTEN=127.0.0.1:0")
	}
	c := exec.Command(command[0], command[1:]...)
	c.Path, c.Dir, c.Env = command[0], folder, environment
	inRoot(c, root)
	stderr, err := c.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	end := time.AfterFunc(patience, func() { _ = c.Process.Kill() })
	defer end.Stop()
	var said strings.Builder
	serving := false
	for lines := bufio.NewScanner(stderr); lines.Scan(); {
		said.WriteString(lines.Text() + "\n")
		if !serving && regexp.MustCompile(`"?msg"?[=:]"?serving`).MatchString(lines.Text()) {
			serving = true
			if err := c.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := c.Wait(); err != nil || !serving {
		t.Errorf("%q: %v\n%s", command, err, &said)
	}

	zones := exec.Command(command[0], "next", "30 9 * * *", "--timezone=Europe/Paris", "--count=1")
	zones.Path, zones.Dir = command[0], folder
	inRoot(zones, root)
	if out, err := zones.CombinedOutput(); err != nil || !strings.Contains(string(out), "09:30:00 +0") {
		t.Errorf("it does not know time zones: %v\n%s", err, out)
	}
}

// inRoot runs a command with a folder as its root, as a user without rights. If this process is not root, it uses a
// user namespace.
func inRoot(c *exec.Cmd, root string) {
	c.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: user, Gid: user}}
	if os.Geteuid() != 0 {
		c.SysProcAttr.Credential = nil
		c.SysProcAttr.Cloneflags = syscall.CLONE_NEWUSER
		c.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: user, HostID: os.Geteuid(), Size: 1}}
		c.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: user, HostID: os.Getegid(), Size: 1}}
	}
}

// owned gives a folder to a user, if this process is root. Otherwise the user in the namespace already owns it.
func owned(t *testing.T, path string, uid int) {
	t.Helper()
	if os.Geteuid() == 0 {
		if err := os.Chown(path, uid, uid); err != nil {
			t.Fatal(err)
		}
	}
}

func place(t *testing.T, path string, content []byte, mode os.FileMode) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, content, mode)); err != nil {
		t.Fatal(err)
	}
}

func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil && !(name == "systemd-analyze" && args[0] == "verify") {
		t.Errorf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// TestVersion: a release has the tag of its commit, and a snapshot's version names its commit.
func TestVersion(t *testing.T) {
	for _, c := range []struct{ asked, described, want string }{
		{"", "v1.2.3", "v1.2.3"},
		{"v1.2.3", "v1.2.3", "v1.2.3"},
		{"v1.2.3-rc.1", "v1.2.3-rc.1", "v1.2.3-rc.1"},
		{"", "v1.2.3-4-gabcdef0", "v1.2.3-4-gabcdef0"},
		{"", "abcdef0", "v0.0.0-gabcdef0"},
		{"", "abcdef0-dirty", "v0.0.0-gabcdef0-dirty"},
		{"v1.2.3", "v1.2.3-dirty", ""},
		{"v1.2.3", "v1.2.2-4-gabcdef0", ""},
		{"1.2.3", "1.2.3", ""},
	} {
		if got, err := versionOf(c.asked, c.described); got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%q of %q is %q, %v, want %q", c.asked, c.described, got, err, c.want)
		}
	}
}

// TestInstall: go install …/cmd/carillon@VERSION works. The module can be packed for a proxy, contains everything that
// the program is built from, and replaces no other module.
func TestInstall(t *testing.T) {
	const path = "github.com/carillon-scheduler/carillon"
	var packed bytes.Buffer
	version := module.Version{Path: path, Version: "v0.0.1"}
	archive, committed := filepath.Join(t.TempDir(), "head.tar"), t.TempDir()
	output(t, "git", "-C", "../..", "archive", "--output="+archive, "HEAD")
	for name, content := range untar(t, archive) {
		if len(content) > 0 {
			place(t, filepath.Join(committed, name), content, 0o644)
		}
	}
	if err := zip.CreateFromDir(&packed, version, committed); err != nil {
		t.Fatal(err)
	}
	file, folder := filepath.Join(t.TempDir(), "module.zip"), filepath.Join(t.TempDir(), "module")
	place(t, file, packed.Bytes(), 0o644)
	if err := zip.Unzip(folder, version, file); err != nil {
		t.Fatal(err)
	}
	list := exec.Command("go", "list", "-mod=readonly", "-deps", "./cmd/carillon")
	list.Dir = folder
	if out, err := list.CombinedOutput(); err != nil || !strings.Contains(string(out), path+"/cmd/carillon\n") {
		t.Errorf("%v\n%s", err, out)
	}
	edit := exec.Command("go", "mod", "edit", "-json")
	edit.Dir = folder
	out, err := edit.Output()
	if err != nil {
		t.Fatal(err)
	}
	var mod struct{ Replace, Exclude []any }
	if err := json.Unmarshal(out, &mod); err != nil || len(mod.Replace) > 0 || len(mod.Exclude) > 0 {
		t.Errorf("go.mod replaces or excludes modules, which go install refuses: %+v, %v", mod, err)
	}
}
