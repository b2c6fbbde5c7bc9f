package main

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb" // the formats of the packages
	"github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm"
)

// packages writes the packages for Debian and RPM: the program, its systemd unit, manual page and completions. The unit
// has a dynamic user, so the package creates none.
func (r *release) packages(p program, documents map[string]entry) error {
	staged := filepath.Join(r.work, p.system+"_"+p.processor)
	compressed := func(name string) entry {
		var b bytes.Buffer
		g, _ := gzip.NewWriterLevel(&b, gzip.BestCompression) // the level is valid
		_, _ = g.Write(documents[name].content)               // into memory
		_ = g.Close()
		return entry{name: name + ".gz", content: b.Bytes()}
	}
	var contents files.Contents
	add := func(kind, target string, e entry) error {
		source := filepath.Join(staged, e.name)
		if e.content != nil {
			if err := os.WriteFile(source, e.content, 0o644); err != nil {
				return err
			}
		}
		contents = append(contents, &files.Content{
			Source: source, Destination: target, Type: kind,
			FileInfo: &files.ContentFileInfo{Owner: "root", Group: "root", Mode: e.mode, MTime: r.at},
		})
		return nil
	}
	mode := func(m fs.FileMode, e entry) entry { e.mode = m; return e }
	for _, c := range []struct {
		kind, target string
		entry
	}{
		{files.TypeFile, "/usr/bin/carillon", entry{name: "carillon", mode: 0o755}},
		{files.TypeFile, "/usr/lib/systemd/system/carillon.service", documents["carillon.service"]},
		{files.TypeConfigNoReplace, "/etc/carillon/carillon.env", mode(0o600, documents["carillon.env"])},
		{files.TypeFile, "/usr/share/man/man1/carillon.1.gz", mode(0o644, compressed("carillon.1"))},
		{files.TypeFile, "/usr/share/bash-completion/completions/carillon", documents["carillon.bash"]},
		{files.TypeFile, "/usr/share/zsh/vendor-completions/_carillon", documents["carillon.zsh"]},
		{files.TypeFile, "/usr/share/fish/vendor_completions.d/carillon.fish", documents["carillon.fish"]},
		{files.TypeFile, "/usr/share/doc/carillon/copyright", documents["LICENSE"]},
		{files.TypeFile, "/usr/share/doc/carillon/changelog.gz", mode(0o644, compressed("CHANGELOG.md"))},
	} {
		if err := add(c.kind, c.target, c.entry); err != nil {
			return err
		}
	}
	scripts := filepath.Join(r.root, "deploy/systemd")
	for _, format := range []string{"deb", "rpm"} {
		info := nfpm.WithDefaults(&nfpm.Info{
			Name: "carillon", Platform: p.system, Arch: p.processor, Version: r.tag, Release: "1",
			Section: "net", Priority: "optional", Maintainer: "The Carillon authors <carillon@localhost>",
			Description: "Scheduling service\n" +
				"It fires callbacks at their instants: webhooks, and messages of RabbitMQ and Kafka.",
			Homepage: "https://github.com/carillon-scheduler/carillon", License: "Apache-2.0", MTime: r.at,
			Overridables: nfpm.Overridables{
				Contents: slices.Clone(contents),
				Scripts: nfpm.Scripts{
					PostInstall: filepath.Join(scripts, "postinstall.sh"),
					PreRemove:   filepath.Join(scripts, "preremove.sh"),
					PostRemove:  filepath.Join(scripts, "postremove.sh"),
				},
				RPM: nfpm.RPM{BuildHost: "localhost"},
			},
		})
		if err := nfpm.PrepareForPackager(info, format); err != nil {
			return fmt.Errorf("%s: %w", format, err)
		}
		packager, err := nfpm.Get(format)
		if err != nil {
			return err
		}
		var file bytes.Buffer
		if err := packager.Package(info, &file); err != nil {
			return fmt.Errorf("%s: %w", format, err)
		}
		if err := r.write(packager.ConventionalFileName(info), file.Bytes()); err != nil {
			return err
		}
	}
	return nil
}
