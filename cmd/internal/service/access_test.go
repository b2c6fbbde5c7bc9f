package service

import (
	"bytes"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"github.com/carillon-scheduler/carillon/cmd/internal/listen/listentest"
)

// TestKeysInPlainText: a service that listens beyond this machine without TLS warns that keys are readable on the way.
func TestKeysInPlainText(t *testing.T) {
	dir := t.TempDir()
	files := listentest.NewAuthority(t).Issue(t, dir, listentest.Certificate{})
	for name, c := range map[string]struct {
		settings map[string]string
		warned   bool
	}{
		"beyond":           {map[string]string{"auth": "keys", "listen": ":0"}, true},
		"beyond, with TLS": {map[string]string{"auth": "keys", "listen": ":0", "tls-cert": files.CertFile, "tls-key": files.KeyFile}, false},
		"loopback":         {map[string]string{"auth": "keys", "listen": "127.0.0.1:0"}, false},
		"without keys":     {map[string]string{"listen": ":0", "insecure-no-auth-beyond-loopback": "true"}, false},
	} {
		c.settings["store"] = "sqlite:" + filepath.Join(dir, "carillon.db")
		options, err := Configure(c.settings)
		if err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		parts, err := Open(t.Context(), options, slog.New(slog.NewTextHandler(&log, nil)))
		if err != nil {
			t.Fatal(err)
		}
		if err := parts.closers.Close(); err != nil {
			t.Error(err)
		}
		if warned := strings.Contains(log.String(), "plain text"); warned != c.warned {
			t.Errorf("%s: the log has %q", name, &log)
		}
	}
}
