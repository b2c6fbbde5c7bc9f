package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// entry is a file of an archive.
type entry struct {
	name    string
	content []byte
	mode    fs.FileMode
}

// files writes archives, packages, lists of components and the chart.
func (r *release) files(programs []program) error {
	documents, err := r.documents(programs)
	if err != nil {
		return err
	}
	for _, p := range programs {
		if err := r.archive(p, documents); err != nil {
			return err
		}
		if p.system == "linux" {
			if err := r.packages(p, documents); err != nil {
				return err
			}
		}
		components, err := os.ReadFile(p.components)
		if err != nil {
			return err
		}
		if err := r.write(r.name(p)+".cdx.json", components); err != nil {
			return err
		}
	}
	return r.chart()
}

func (r *release) name(p program) string {
	return "carillon_" + r.v + "_" + p.system + "_" + p.processor
}

func (r *release) write(name string, content []byte) error {
	return os.WriteFile(filepath.Join(r.out, name), content, 0o644)
}

// documents returns the files beside the program. The program for this machine writes its manual page and completions.
func (r *release) documents(programs []program) (all map[string]entry, err error) {
	i := slices.IndexFunc(programs, func(p program) bool {
		return p.system == runtime.GOOS && p.processor == runtime.GOARCH
	})
	if i < 0 {
		return nil, fmt.Errorf("-platforms lacks %s/%s, which this machine is: the program writes its manual page itself",
			runtime.GOOS, runtime.GOARCH)
	}
	path := programs[i].path
	all = make(map[string]entry)
	for name, args := range map[string][]string{
		"carillon.1":    {"man"},
		"carillon.bash": {"completion", "bash"},
		"carillon.zsh":  {"completion", "zsh"},
		"carillon.fish": {"completion", "fish"},
	} {
		text, err := exec.Command(path, args...).Output()
		if err != nil {
			return nil, fmt.Errorf("carillon %s: %w", strings.Join(args, " "), err)
		}
		all[name] = entry{name: name, content: text, mode: 0o644}
	}
	for _, name := range []string{
		"LICENSE", "README.md", "CHANGELOG.md", "deploy/systemd/carillon.service", "deploy/systemd/carillon.env",
	} {
		text, err := os.ReadFile(filepath.Join(r.root, name))
		if err != nil {
			return nil, err
		}
		name = filepath.Base(name)
		all[name] = entry{name: name, content: text, mode: 0o644}
	}
	return all, nil
}

// archive writes an archive of the program and its documents, for any system.
func (r *release) archive(p program, documents map[string]entry) error {
	content, err := os.ReadFile(p.path)
	if err != nil {
		return err
	}
	entries := []entry{{name: "carillon", content: content, mode: 0o755}}
	for _, name := range []string{
		"CHANGELOG.md", "LICENSE", "README.md", "carillon.1", "carillon.bash", "carillon.fish", "carillon.zsh",
	} {
		entries = append(entries, documents[name])
	}
	if p.system == "windows" {
		entries[0].name = "carillon.exe"
		var file bytes.Buffer
		z := zip.NewWriter(&file)
		for _, e := range entries {
			h := &zip.FileHeader{Name: r.name(p) + "/" + e.name, Method: zip.Deflate, Modified: r.at}
			h.SetMode(e.mode)
			w, err := z.CreateHeader(h)
			if err != nil {
				return err
			}
			if _, err := w.Write(e.content); err != nil {
				return err
			}
		}
		if err := z.Close(); err != nil {
			return err
		}
		return r.write(r.name(p)+".zip", file.Bytes())
	}
	file, err := r.tarGz(r.name(p), entries)
	if err != nil {
		return err
	}
	return r.write(r.name(p)+".tar.gz", file)
}

// tarGz packs files into a folder.
func (r *release) tarGz(folder string, entries []entry) ([]byte, error) {
	var file bytes.Buffer
	g, err := gzip.NewWriterLevel(&file, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	t := tar.NewWriter(g)
	for _, e := range entries {
		err := t.WriteHeader(&tar.Header{
			Name: folder + "/" + e.name, Mode: int64(e.mode), Size: int64(len(e.content)), ModTime: r.at, Format: tar.FormatPAX,
		})
		if err != nil {
			return nil, err
		}
		if _, err := t.Write(e.content); err != nil {
			return nil, err
		}
	}
	if err := t.Close(); err != nil {
		return nil, err
	}
	if err := g.Close(); err != nil {
		return nil, err
	}
	return file.Bytes(), nil
}

// chart packs the Helm chart, with the release's version.
func (r *release) chart() error {
	root := filepath.Join(r.root, "deploy/helm/carillon")
	var entries []entry
	err := fs.WalkDir(os.DirFS(root), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasPrefix(path, "ci/") {
			return err
		}
		content, err := os.ReadFile(filepath.Join(root, path))
		if path == "Chart.yaml" {
			content = bytes.ReplaceAll(content, []byte("ersion: 0.0.0\n"), []byte("ersion: "+r.v+"\n"))
		}
		entries = append(entries, entry{name: path, content: content, mode: 0o644})
		return err
	})
	if err != nil {
		return err
	}
	file, err := r.tarGz("carillon", entries)
	if err != nil {
		return err
	}
	return r.write("carillon-"+r.v+".tgz", file)
}

// checksums writes the SHA-256 of each file, in the form of sha256sum.
func (r *release) checksums() error {
	files, err := os.ReadDir(r.out)
	if err != nil {
		return err
	}
	var lines strings.Builder
	for _, f := range files {
		hash := sha256.New()
		file, err := os.Open(filepath.Join(r.out, f.Name()))
		if err != nil {
			return err
		}
		_, err = io.Copy(hash, file)
		_ = file.Close()
		if err != nil {
			return err
		}
		fmt.Fprintf(&lines, "%x  %s\n", hash.Sum(nil), f.Name())
	}
	return r.write("SHA256SUMS", []byte(lines.String()))
}
