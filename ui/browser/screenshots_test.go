package browser_test

import (
	"os"
	"path/filepath"
	"testing"
)

// The pictures in the documentation show `carillon demo --ui`. They are written to the folder in CARILLON_SCREENSHOTS,
// such as docs/ui; without it, the test only takes them.
func TestScreenshots(t *testing.T) {
	dir := os.Getenv("CARILLON_SCREENSHOTS")
	if dir == "" {
		dir = t.TempDir()
	}
	url, _ := launch(t, `(http://\S+)/ui/`, "demo", "--ui")
	p := open(t, url)
	for _, s := range []struct {
		name, theme, path, sees, pick string
		width, height                 int64
	}{
		{"dead-letters", "light", "dead-letters", "legacy/export-12", "", 1360, 860},
		{"new-job", "light", "new", "Wall times in", "", 1360, 1180},
		{"job", "dark", "jobs/" + escape("billing/monthly"), "clocks UTC+1 → UTC+2", ".track .instant:nth-of-type(5)", 1360, 1120},
		{"phone", "dark", "jobs/" + escape("orders/import"), "History", "", 390, 844},
		{"overview", "light", "", " readings; now", "", 1360, 1240},
	} {
		p.fill("Colours", s.theme)
		p.goTo(s.path)
		p.see(s.sees)
		if s.pick != "" {
			p.until("pick an instant", "document.querySelector("+quote(s.pick)+")?.click() ?? document.body.innerText.includes('Explained')")
		}
		p.gone("Loading…")
		p.shoot(filepath.Join(dir, s.name+"-"+s.theme+".webp"), s.width, s.height)
	}
}
