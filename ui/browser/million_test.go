//go:build long

package browser_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"
)

// TestMillion browses a tenant with a million jobs and one with 500, and prints the times (go test -v -tags long).
func TestMillion(t *testing.T) {
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
