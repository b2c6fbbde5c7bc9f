// Package ui is the web page, whose files are built into the program. The page uses only the public API, on the same
// address. Its source is in ui/src; .ci/ui builds ui/dist from that.
package ui

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"time"
)

//go:embed dist
var dist embed.FS

// Prefix is the path below which the page is served.
const Prefix = "/ui/"

// policy allows the page only its own needs. It forbids scripts and styles in its text, any other origin, frames around
// it, and texts that become markup.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// mediaTypes maps the extensions of the files to their media types.
var mediaTypes = map[string]string{
	".html": "text/html; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".svg":  "image/svg+xml",
}

// file is one of the page's files.
type file struct {
	mediaType, tag    string
	plain, compressed []byte
}

// Handler serves the page at [Prefix], and everything else by next. Paths reach next as clients sent them.
func Handler(next http.Handler) http.Handler {
	files := load()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// The escaped path, since an escaped part of it can be a job's key.
		name, below := strings.CutPrefix(r.URL.EscapedPath(), Prefix)
		if name == "" {
			name = "index.html"
		}
		f, known := files[name]
		switch {
		case r.URL.EscapedPath() == strings.TrimSuffix(Prefix, "/"):
			w.Header().Set("Location", "ui/") // relative, since a proxy may have removed a prefix
			w.WriteHeader(http.StatusMovedPermanently)
		case !below || !known:
			next.ServeHTTP(w, r)
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			w.Header().Set("Allow", "GET, HEAD")
			w.WriteHeader(http.StatusMethodNotAllowed)
		default:
			f.serve(w, r)
		}
	})
}

func (f *file) serve(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Type", f.mediaType)
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-cache") // browsers revalidate it by its tag, so a new release is visible at once
	h.Set("Vary", "Accept-Encoding")
	body, tag := f.plain, `"`+f.tag+`"`
	if acceptsGzip(r) {
		h.Set("Content-Encoding", "gzip")
		body, tag = f.compressed, `"`+f.tag+`-gzip"`
	}
	h.Set("ETag", tag)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(body))
}

// acceptsGzip reports whether a client accepts gzip. All browsers name it, without a weight.
func acceptsGzip(r *http.Request) bool {
	for _, list := range r.Header.Values("Accept-Encoding") {
		for coding := range strings.SplitSeq(list, ",") {
			if strings.EqualFold(strings.TrimSpace(coding), "gzip") {
				return true
			}
		}
	}
	return false
}

// load reads and compresses the files.
func load() map[string]*file {
	files := map[string]*file{}
	err := fs.WalkDir(dist, "dist", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		plain, err := dist.ReadFile(name)
		sum := sha256.Sum256(plain)
		files[path.Base(name)] = &file{
			mediaType: mediaTypes[path.Ext(name)], tag: hex.EncodeToString(sum[:12]), plain: plain, compressed: compress(plain),
		}
		return err
	})
	if err != nil {
		panic(err) // can't happen: the files are in the program
	}
	return files
}

func compress(plain []byte) []byte {
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		panic(err) // can't happen: the level is valid
	}
	_, _ = z.Write(plain) // a buffer accepts everything
	_ = z.Close()
	return b.Bytes()
}
