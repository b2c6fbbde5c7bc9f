package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// user is the image's user. It is a number, so that Kubernetes can see that it is not root.
const user = 65532

// image writes one image for all Linux programs, as an archive that Docker, Podman and other tools load. If there is a
// repository, it also pushes the image. The image holds the program, certificates and a user; the program contains the
// time zones. It returns the image's digest.
func (r *release) image(programs []program, repository string) (v1.Hash, error) {
	base, err := r.layer(r.base())
	if err != nil {
		return v1.Hash{}, err
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	var first v1.Image // for tools that don't support indexes
	for _, p := range programs {
		if p.system != "linux" {
			continue
		}
		image, err := r.imageOf(p, base)
		if err != nil {
			return v1.Hash{}, fmt.Errorf("image for %s: %w", p.processor, err)
		}
		if first == nil {
			first = image
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: image, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: p.system, Architecture: p.processor}},
		})
	}
	if first == nil {
		return v1.Hash{}, fmt.Errorf("-platforms has no Linux, which images are for")
	}
	if err := r.writeImage(index, first); err != nil {
		return v1.Hash{}, err
	}
	if repository != "" {
		to, err := name.NewTag(repository + ":" + r.v)
		if err != nil {
			return v1.Hash{}, fmt.Errorf("-push: %w", err)
		}
		if err := remote.WriteIndex(to, index, remote.WithAuthFromKeychain(authn.DefaultKeychain)); err != nil {
			return v1.Hash{}, fmt.Errorf("-push: %w", err)
		}
	}
	return index.Digest()
}

// imageOf makes the image for one kind of processors, with the settings of docker/Dockerfile.
func (r *release) imageOf(p program, base v1.Layer) (v1.Image, error) {
	content, err := os.ReadFile(p.path)
	if err != nil {
		return nil, err
	}
	own, err := r.layer([]node{{Header: tar.Header{Name: "carillon", Mode: 0o755}, content: content}})
	if err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	created := v1.Time{Time: r.at}
	image, err = mutate.Append(image,
		mutate.Addendum{Layer: base, History: v1.History{Created: created, CreatedBy: "certificates and a user"}},
		mutate.Addendum{Layer: own, History: v1.History{Created: created, CreatedBy: "carillon " + r.tag}})
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.Architecture, config.OS, config.Created = p.processor, p.system, created
	config.Config = v1.Config{
		User: fmt.Sprintf("%d:%d", user, user),
		Env: []string{
			"PATH=/",
			"SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt",
			"CARILLON_LISTEN=:8080",
			"CARILLON_AUTH=keys",
			"CARILLON_STORE=sqlite:/data/carillon.db",
			"CARILLON_LOG_FORMAT=json",
		},
		Entrypoint:   []string{"/carillon"},
		Cmd:          []string{"serve"},
		ExposedPorts: map[string]struct{}{"8080/tcp": {}},
		Volumes:      map[string]struct{}{"/data": {}},
		WorkingDir:   "/",
		Healthcheck: &v1.HealthConfig{
			Test:     []string{"CMD", "/carillon", "healthcheck"},
			Interval: 15 * time.Second, Timeout: 5 * time.Second, StartPeriod: 2 * time.Minute,
		},
		Labels: map[string]string{
			"org.opencontainers.image.title":    "carillon",
			"org.opencontainers.image.version":  r.v,
			"org.opencontainers.image.revision": r.rev,
			"org.opencontainers.image.source":   "https://github.com/carillon-scheduler/carillon",
			"org.opencontainers.image.created":  r.at.Format(time.RFC3339),
		},
	}
	return mutate.ConfigFile(image, config)
}

// node is a file or a folder of a layer.
type node struct {
	tar.Header
	content []byte
}

// base is the content of the layer below the program.
func (r *release) base() []node {
	var certificates bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint != nil {
			continue // it may vouch only for some certificates, which PEM can't express
		}
		_ = pem.Encode(&certificates, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}) // into memory
	}
	folder := func(name string, mode fs.FileMode, owner int) node {
		return node{Header: tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: int64(mode), Uid: owner, Gid: owner}}
	}
	file := func(name, content string) node {
		return node{Header: tar.Header{Name: name, Mode: 0o644}, content: []byte(content)}
	}
	return []node{
		folder("data/", 0o755, user), // for the default store: a volume mounted here is writable
		folder("etc/", 0o755, 0),
		file("etc/group", fmt.Sprintf("root:x:0:\nnonroot:x:%d:\n", user)),
		file("etc/passwd", fmt.Sprintf("root:x:0:0:root:/:/none\nnonroot:x:%d:%d:nonroot:/:/none\n", user, user)),
		folder("etc/ssl/", 0o755, 0),
		folder("etc/ssl/certs/", 0o755, 0),
		file("etc/ssl/certs/ca-certificates.crt", certificates.String()),
		folder("tmp/", 0o1777, 0),
	}
}

// layer makes a layer of files. Its digest depends only on the files and the release's time.
func (r *release) layer(nodes []node) (v1.Layer, error) {
	var file bytes.Buffer
	t := tar.NewWriter(&file)
	for _, n := range nodes {
		n.Size, n.ModTime, n.Format = int64(len(n.content)), r.at, tar.FormatPAX
		if err := t.WriteHeader(&n.Header); err != nil {
			return nil, err
		}
		if _, err := t.Write(n.content); err != nil {
			return nil, err
		}
	}
	if err := t.Close(); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(file.Bytes())), nil
	}, tarball.WithMediaType(types.OCILayer))
}

// writeImage writes an archive in the OCI format, with an additional file that leads older versions of Docker to the
// first of the images.
func (r *release) writeImage(index v1.ImageIndex, first v1.Image) error {
	folder := filepath.Join(r.work, "image")
	l, err := layout.Write(folder, empty.Index)
	if err != nil {
		return err
	}
	err = l.AppendIndex(index, layout.WithAnnotations(map[string]string{
		"org.opencontainers.image.ref.name": r.v,
		"io.containerd.image.name":          "docker.io/library/carillon:" + r.v,
	}))
	if err != nil {
		return err
	}
	manifest, err := first.Manifest()
	if err != nil {
		return err
	}
	blob := func(h v1.Hash) string { return path.Join("blobs", h.Algorithm, h.Hex) }
	old := struct {
		Config           string
		RepoTags, Layers []string
	}{Config: blob(manifest.Config.Digest), RepoTags: []string{"carillon:" + r.v}}
	for _, layer := range manifest.Layers {
		old.Layers = append(old.Layers, blob(layer.Digest))
	}
	text, err := json.Marshal([]any{old})
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(folder, "manifest.json"), text, 0o644); err != nil {
		return err
	}

	file, err := os.Create(filepath.Join(r.out, "carillon_"+r.v+"_image.tar"))
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	t := tar.NewWriter(file)
	root := os.DirFS(folder)
	err = fs.WalkDir(root, ".", func(path string, d fs.DirEntry, err error) error { // in the order of names
		if err != nil || d.IsDir() {
			return err
		}
		content, err := fs.ReadFile(root, path)
		if err != nil {
			return err
		}
		h := &tar.Header{Name: path, Mode: 0o644, Size: int64(len(content)), ModTime: r.at, Format: tar.FormatPAX}
		if err := t.WriteHeader(h); err != nil {
			return err
		}
		_, err = t.Write(content)
		return err
	})
	if err != nil {
		return err
	}
	if err := t.Close(); err != nil {
		return err
	}
	return file.Close()
}
