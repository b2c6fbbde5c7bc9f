package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// program is the service, built for one platform.
type program struct {
	system, processor string // as Go names them
	path              string
	components        string // the list of its components
}

// build builds the service with the repository's build script, and lists its components.
func (r *release) build(system, processor string) (program, error) {
	p := program{system: system, processor: processor}
	folder := filepath.Join(r.work, system+"_"+processor)
	p.path = filepath.Join(folder, "carillon")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return p, err
	}
	environment := []string{"GOOS=" + system, "GOARCH=" + processor, "VERSION=" + r.tag, "GOFLAGS="}
	if err := r.script(environment, ".ci/build", p.path); err != nil {
		return p, fmt.Errorf("%s/%s: %w", system, processor, err)
	}
	if err := r.script([]string{"VERSION=" + r.tag}, ".ci/sbom", p.path); err != nil {
		return p, fmt.Errorf("%s/%s: %w", system, processor, err)
	}
	p.components = p.path + ".cdx.json"
	return p, nil
}

// script runs a program of the repository.
func (r *release) script(environment []string, name string, args ...string) error {
	c := exec.Command(filepath.Join(r.root, name), args...)
	c.Dir = r.root
	c.Env = append(os.Environ(), environment...)
	c.Stdout, c.Stderr = os.Stderr, os.Stderr
	return c.Run()
}
