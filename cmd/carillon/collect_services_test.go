//go:build services

package main_test

import (
	"io"
	"net/http"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"github.com/carillon-scheduler/carillon/store/sqlite"
)

// The program collects garbage rarely, unless GOGC says otherwise.
func TestProgramCollectsRarely(t *testing.T) {
	for gogc, ok := range map[string]func(percent int) bool{
		"":   func(percent int) bool { return percent > 100 },
		"50": func(percent int) bool { return percent == 50 },
	} {
		t.Run("GOGC="+gogc, func(t *testing.T) {
			t.Setenv("GOGC", gogc)
			url := "sqlite:" + filepath.Join(t.TempDir(), "carillon.db")
			s, err := sqlite.Open(t.Context(), url)
			if err != nil {
				t.Fatal(err)
			}
			c := newCluster(t, url, s)
			c.start(1)
			response, err := http.Get(c.replicas[0].url + "/metrics")
			if err != nil {
				t.Fatal(err)
			}
			metrics, err := io.ReadAll(response.Body)
			if err := response.Body.Close(); err != nil {
				t.Error(err)
			}
			found := regexp.MustCompile(`(?m)^go_gc_gogc_percent (\d+)$`).FindSubmatch(metrics)
			if err != nil || found == nil {
				t.Fatalf("the metrics do not tell, %v", err)
			}
			if percent, _ := strconv.Atoi(string(found[1])); !ok(percent) {
				t.Errorf("it is %d %%", percent)
			}
		})
	}
}
