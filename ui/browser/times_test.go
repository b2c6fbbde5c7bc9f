package browser_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// The times that people wait for the page are printed (go test -v -run TestTimes), and not bounded: the machine may be
// busy. It runs before the tests that run at the same time.
func TestTimes(t *testing.T) {
	s := serve(t, "")
	key := s.key("operator")
	for i := range 200 {
		s.send(key, "PUT", fmt.Sprintf("/v1/jobs/k%03d", i), object{"crontab": "H 9 * * *", "callback": callback("http://127.0.0.1:9/")}, 201)
	}
	p := open(t, s.url).signIn(key)
	p.see("Is it on time?")
	var loads []float64
	for range 5 {
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

// waiting is the part of scripts that waits until something is shown, as people do: frame by frame.
const waiting = `const until = (is) => new Promise((done) => {
	const look = () => is() ? done() : requestAnimationFrame(look);
	look();
});`

// time returns the milliseconds from an act until something is shown.
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

// TestMillion browses a tenant with a million jobs, and one with 500. The times are printed (CARILLON_TEST_LONG=1 go test -v).
func TestMillion(t *testing.T) {
	if os.Getenv("CARILLON_TEST_LONG") == "" {
		t.Skip("CARILLON_TEST_LONG is not set")
	}
	s := serve(t, "")
	key := s.key("operator")
	began := time.Now()
	sizes := map[string]int{"small": 500, "large": 1_000_000}
	for tenant, size := range sizes {
		const slice = 20_000
		for from := 0; from < size; from += slice {
			var lines bytes.Buffer
			for i := from; i < min(from+slice, size); i++ {
				j := object{"key": fmt.Sprintf("team%02d/job-%07d", i*100/size, i), "callback": callback("http://127.0.0.1:9/")}
				if i%1000 == 999 {
					j["crontab"] = "H 9 * * *"
				} else {
					j["schedules"] = []time.Time{began.AddDate(1, 0, 0).Add(time.Duration(i) * time.Second).Truncate(time.Second)}
				}
				line, err := json.Marshal(j)
				if err != nil {
					t.Fatal(err)
				}
				lines.Write(append(line, '\n'))
			}
			s.batch(key, tenant, &lines, min(slice, size-from))
		}
	}
	t.Logf("%d jobs are stored in %.0f s", sizes["large"]+sizes["small"], time.Since(began).Seconds())

	p := open(t, s.url).signIn(key)
	rows := "document.querySelectorAll('main tbody tr').length === 50"
	p.until("the tenants are listed", "[...field('Tenant').options].some((o) => o.value === 'small')")
	for _, tenant := range []string{"small", "large"} {
		p.goTo("")
		p.fill("Tenant", tenant)
		p.until("the tenant is chosen", "field('Tenant').value === "+quote(tenant))
		t.Logf("%s: the list: %.0f ms", tenant, p.time("location.hash = '#/jobs'", rows))
		var pages []float64
		for n := range 9 {
			pages = append(pages, p.time("window.before = document.querySelector('main td.key').textContent; clickable('Next →').click()",
				fmt.Sprintf("text().includes('Page %d') && %s && document.querySelector('main td.key').textContent > window.before", n+2, rows)))
		}
		t.Logf("%s: its next pages: %s", tenant, timesText(pages))
		p.goTo("jobs")
		search := fmt.Sprintf("team73/job-%07d", sizes[tenant]*74/100-1)
		t.Logf("%s: a search for one of them, with 200 ms after the last key: %.0f ms", tenant, p.time(
			"(() => { const e = field('Key begins with'); e.value = "+quote(search)+"; e.dispatchEvent(new Event('input', {bubbles: true})); })()",
			"document.querySelectorAll('main tbody tr').length === 1 && text().includes("+quote(search)+")"))
		t.Logf("%s: that job: %.0f ms", tenant, p.time("clickable("+quote(search)+").click()", "text().includes('What it does')"))
		p.goTo("jobs")
		p.fill("Key begins with", "")
		if tenant == "large" {
			t.Logf("large: ten crontabs among each ten thousand: %.0f ms", p.time(
				"(() => { const e = field('Kind'); e.value = 'crontab'; e.dispatchEvent(new Event('change', {bubbles: true})); })()",
				"document.querySelectorAll('main tbody tr').length === 10"))
			p.fill("Kind", "")
			t.Logf("large: the overview: %.0f ms", p.time("location.hash = '#/'", "text().includes('Is it on time?')"))
		}
	}
}

// batch submits jobs of a tenant, one on each line.
func (s *service) batch(key, tenant string, lines *bytes.Buffer, count int) {
	s.Helper()
	request, err := http.NewRequestWithContext(s.Context(), http.MethodPost, s.url+"/v1/jobs/batch", lines)
	if err != nil {
		s.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+key)
	request.Header.Set("Content-Type", "application/x-ndjson")
	request.Header.Set("Carillon-Tenant", tenant)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		s.Fatal(err)
	}
	defer response.Body.Close()
	accepted := 0
	for results := json.NewDecoder(response.Body); results.More(); {
		var result struct{ Status int }
		if err := results.Decode(&result); err != nil {
			s.Fatal(err)
		}
		if result.Status == http.StatusCreated {
			accepted++
		}
	}
	if accepted != count {
		s.Fatalf("%d of %d jobs are accepted: %s", accepted, count, response.Status)
	}
}
