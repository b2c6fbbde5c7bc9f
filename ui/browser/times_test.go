package browser_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/chromedp/chromedp"
)

// TestTimes prints the waiting times of the page's users (go test -v -run TestTimes). It sets no limits, since the
// machine may be busy. It runs before the parallel tests.
func TestTimes(t *testing.T) {
	s := serve(t, "")
	key := s.key("operator")
	for i := range 200 {
		s.send(key, "PUT", fmt.Sprintf("/v1/jobs/k%03d", i), object{"crontab": "H 9 * * *", "callback": callback("http://127.0.0.1:9/")}, 201)
	}
	p := open(t, s.url).signIn(key)
	p.see("Is it on time?")
	var loads []float64
	times := 1
	if testing.Verbose() { // otherwise nobody sees the times
		times = 5
	}
	for range times {
		p.run(chromedp.Navigate("about:blank"), chromedp.Navigate(s.url+"/ui/"))
		loads = append(loads, eval[float64](p, waiting+`until(() => document.body.innerText.includes('Is it on time?')).then(() => performance.now())`))
	}
	t.Logf("the page is loaded, and the overview shown: %s", timesText(loads))
	for _, step := range []struct{ name, act, until string }{
		{"the list of jobs", "location.hash = '#/jobs'", "document.querySelectorAll('main tbody tr').length === 50"},
		{"its next page", "clickable('Next →').click()", "document.querySelector('main td.key')?.textContent === 'k050'"},
		{"a job, with its instants", "location.hash = '#/jobs/k007'", "document.querySelector('.track .instant')"},
		{"an instant explained", "document.querySelectorAll('.track .instant')[2].click()", "document.querySelector('.explained')"},
		{"its pause", "clickable('Pause').click()", "clickable('Resume')"},
		{"the form of a new job", "location.hash = '#/new'", "field('Crontab')"},
		{"the instants of its crontab, after that", "", "text().includes('Wall times in')"},
		{"the instants of a crontab that one types, 150 ms after the last key", "(() => { const e = field('Crontab'); e.value = '7 7 * * *'; e.dispatchEvent(new Event('input', {bubbles: true})); })()",
			"document.querySelector('ol.instants')?.innerText.includes('07:07:00')"},
		{"the dead letters", "location.hash = '#/dead-letters'", "text().includes('everything was delivered')"},
		{"the overview", "location.hash = '#/'", "text().includes('Is it on time?')"},
	} {
		t.Logf("%s: %.0f ms", step.name, p.time(step.act, step.until))
	}
}

// waiting is a part of scripts that wait until something is shown: frame by frame, as people see it.
const waiting = `const until = (is) => new Promise((done) => {
	const look = () => is() ? done() : requestAnimationFrame(look);
	look();
});`

// time returns the milliseconds from an action until its result is shown.
func (p *tab) time(act, until string) float64 {
	p.Helper()
	return eval[float64](p, `(async () => {`+find+waiting+`
		const began = performance.now();
		`+act+`;
		await until(() => `+until+`);
		return performance.now() - began;
	})()`)
}

func timesText(ms []float64) string {
	slices.Sort(ms)
	return fmt.Sprintf("%.0f ms in the middle, %.0f ms at most, of %d", ms[len(ms)/2], ms[len(ms)-1], len(ms))
}
