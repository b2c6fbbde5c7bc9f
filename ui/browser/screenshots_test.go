package browser_test

import (
	"os"
	"path/filepath"
	"testing"
)

// The pictures in the documents are those of `carillon demo --ui`. They are written to the folder that
// CARILLON_SCREENSHOTS names, such as docs/ui; otherwise they are only taken.
func TestScreenshots(t *testing.T) {
	dir := os.Getenv("CARILLON_SCREENSHOTS")
	if dir == "" {
		dir = t.TempDir()
	}
	url, _ := launch(t, `(http://\S+)/ui/`, "demo", "--ui")
	p := open(t, url)
	p.expects("status of 404")
	for _, theme := range []string{"light", "dark"} {
		p.fill("Colours", theme)
		for _, s := range []struct {
			name, path, sees string
			width, height    int64
		}{
			{"overview", "", "Destinations", 1360, 1180},
			{"jobs", "jobs", "billing/monthly", 1360, 760},
			{"job", "jobs/" + escape("billing/monthly"), "clocks UTC+1 → UTC+2", 1360, 1080},
			{"new-job", "new", "Wall times in", 1360, 1300},
			{"dead-letters", "dead-letters", "legacy/export-12", 1360, 860},
			{"tenants", "tenants", "acme", 1360, 500},
			{"secrets", "secrets", "billing-token", 1360, 620},
			{"phone", "jobs/" + escape("orders/import"), "History", 390, 844},
		} {
			p.goTo(s.path)
			p.see(s.sees)
			if s.name == "job" {
				p.until("pick an instant", "document.querySelectorAll('.track .instant')[5]?.click() ?? true")
			}
			p.gone("Loading…")
			p.shoot(filepath.Join(dir, s.name+"-"+theme+".png"), s.width, s.height)
		}
	}
}
