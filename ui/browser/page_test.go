package browser_test

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// markup runs a script wherever the page treats it as HTML.
const markup = `<img src=x onerror=alert(1)><script>alert(2)</script>"'&{{3}}`

// receiver answers with a status.
func receiver(t testing.TB, status int) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, markup, status)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

type object = map[string]any

func callback(url string) object {
	return object{"type": "http", "data": object{"url": url, "payload": object{"text": markup, "large": 1234567890}}}
}

// Axe checks each screen in both themes. The screens contain texts that would run as scripts if the page treated them
// as markup.
func TestScreens(t *testing.T) {
	t.Parallel()
	s := serve(t, "")
	admin := s.key("admin", "--note="+markup)
	fails := receiver(t, http.StatusGone)
	s.send(admin, "PUT", "/v1/jobs/"+escape(markup), object{"crontab": "30 2 * * *", "timezone": "Europe/Berlin", "callback": callback(fails)}, 201)
	s.send(admin, "PUT", "/v1/jobs/dead"+escape(markup), object{"delay": "1ms", "retry": object{"maxAttempts": 1}, "callback": callback(fails)}, 201)
	s.send(admin, "POST", "/v1/signing-secrets", object{"name": "default", "ed25519": true}, 201)
	s.send(admin, "PUT", "/v1/secrets/token", object{"value": "x", "destinations": []string{"http https://<b>.example.com"}}, 201)

	p := open(t, s.url)
	p.see("Sign in with an API key.")
	p.accessible("sign-in")
	p.signIn(admin)
	p.expects("jobs/none") // this job does not exist
	screens := []struct{ path, sees string }{
		{"", "dead" + markup},
		{"jobs", markup},
		{"jobs/" + escape(markup), "What it does"},
		{"jobs/" + escape(markup) + "/edit", "Definition"},
		{"jobs/none", "there is no job with this key"},
		{"new", "Wall times in"},
		{"dead-letters", "410 Gone"},
		{"tenants", "default"},
		{"keys", markup},
		{"secrets", "whpk_"},
		{"nowhere", "There is no such screen."},
	}
	for _, theme := range []string{"light", "dark"} {
		p.fill("Colours", theme)
		for _, screen := range screens {
			p.goTo(screen.path)
			p.see(screen.sees)
			p.gone("Loading…")
			p.accessible(theme + " " + screen.path)
		}
		for screen, dialog := range map[string]string{
			"keys": "New key", "secrets": "New signing secret", "tenants": "Settings of default", "dead-letters": "Look",
		} {
			p.goTo(screen)
			p.click(dialog)
			p.until(dialog+" is open", "document.querySelector('dialog[open]') && !document.querySelector('dialog[open]').innerText.includes('Loading')")
			p.accessible(theme + " " + dialog)
			p.run(chromedp.KeyEvent("\x1b"))
			p.until(dialog+" is closed by Escape", "!document.querySelector('dialog[open]')")
		}
	}

	// The fired occurrence is in the lateness of the present hour.
	p.goTo("")
	p.see("1 have fired; worst in the hour from")

	// The time zone of instants is always shown: the viewer's, UTC, or the job's.
	p.goTo("jobs/" + escape(markup))
	for zone, offset := range map[string]string{"viewer": "UTC+", "utc": "UTC in", "job": "UTC+"} {
		p.fill("Times in", zone)
		p.until(zone+" has its offset", "[...document.querySelectorAll('dd time')][0].innerText.includes("+quote(offset)+")")
	}

	// On a phone, nothing is wider than the screen, except tables that scroll by themselves.
	p.run(chromedp.EmulateViewport(390, 844))
	for _, screen := range screens {
		p.goTo(screen.path)
		p.see(screen.sees)
		p.until(screen.path+" fits on a phone", "document.documentElement.scrollWidth <= 390")
	}
}

// Each button works, on SQLite and on MongoDB's test server.
func TestButtons(t *testing.T) {
	t.Parallel()
	stores := map[string]string{"sqlite": ""}
	if mongodb := os.Getenv("CARILLON_TEST_MONGODB_URI"); mongodb != "" {
		base, options, _ := strings.Cut(mongodb, "?")
		stores["mongodb"] = strings.TrimSuffix(base, "/") + fmt.Sprintf("/ui%d?%s", time.Now().UnixNano(), options)
	}
	for name, store := range stores {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, store)
			admin := s.key("admin")
			p := open(t, s.url).signIn(admin)
			p.expects("status of 404", "status of 422") // a cancelled job, and unfinished input
			pressJob(p)
			pressDeadLetters(p, s, admin)
			if name == "sqlite" { // the test server of MongoDB would take long
				pressManyDeadLetters(p, s, admin)
			}
			pressTenants(p, s, admin)
			pressKeys(p, s)
			pressSecrets(p)
		})
	}
}

func pressJob(p *tab) {
	// The form of a new job shows a preview during typing.
	p.goTo("jobs")
	p.click("New job")
	p.fill("Crontab", "61 * * * *")
	p.see("values from 0 to 59")
	p.fill("Crontab", "30 2 28 3 *")
	p.fill("Time zone", "Europe/Berlin")
	p.see("02:30 does not exist")
	for _, kind := range []string{"At instants", "After a delay", "A sequence", "Again and again"} {
		p.click(kind)
	}
	p.fill("Key", "mail/weekly & more")
	p.fill("URL", "http://127.0.0.1:9/hook")
	p.click("Priority, deadline, check-ins, retries, limits")
	p.fill("A check-in is expected within", "45m")
	p.fill("Spread", "10m")
	p.see("curl -X PUT")
	p.click("Create")
	p.see("The job is created.")
	p.until("the new job is shown", "document.querySelector('h1').innerText === 'mail/weekly & more'")
	p.see("expected within 45m of each instant")

	p.goTo("new")
	p.fill("Key", "mail/weekly & more")
	p.expects("status of 412")
	p.fill("URL", "http://127.0.0.1:9/other")
	p.click("Create")
	p.see("nothing has changed")
	p.click("Replace a job of this key, if there is one")
	p.click("Create or replace")
	p.see("The job is replaced.")

	p.click("Pause")
	p.see("The job is paused.")
	p.click("Resume")
	p.see("The job is resumed.")
	p.ask("Fire now", "Fire now")
	p.see("An occurrence is due now")
	p.until("an instant is explained", "document.querySelectorAll('.track button.instant')[1]?.click() ?? document.body.innerText.includes('Explained')")

	p.click("Edit")
	p.until("edit the definition", `(() => {
		const e = field('The job, as JSON');
		if (!e || !e.value) return false;
		e.value = e.value.replace('"0 9 * * 1-5"', '"15 7 * * 1"').replace('"world"', '"moon", "n": 12345678901234567890');
		e.dispatchEvent(new Event('input', {bubbles: true}));
		return true;
	})()`)
	p.see("/callback/data/payload/hello")
	p.fill("A check-in is expected within", "2h")
	p.see("/expectBy")
	p.fill("Spread", "5m")
	p.until("numbers keep their digits", "document.querySelector('pre').innerText.includes('12345678901234567890')")
	p.until("the instants are previewed", "text().includes('07:15:00')")
	p.click("Store the change")
	p.see("The job is changed.")
	p.see("crontab 15 7 * * 1")
	p.see("expected within 2h of each instant")
	p.until("the stored number has its digits", "document.body.innerText.includes('12345678901234567890')")

	p.goTo("jobs")
	p.fill("Key begins with", "nothing")
	p.see("No job is like that.")
	p.fill("Key begins with", "mail/")
	p.fill("State", "scheduled")
	p.fill("Kind", "sequence")
	p.see("No job is like that.")
	p.fill("Kind", "crontab")
	p.click("mail/weekly & more")
	p.ask("Cancel", "Keep it as it is")
	p.ask("Cancel", "Cancel the job")
	p.see("occurrences will never fire")
	p.see("there is no job with this key")
	p.see("cancelled") // its history stays
}

func pressDeadLetters(p *tab, s *service, admin string) {
	var sent atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		sent.Add(1)
		http.Error(w, markup, http.StatusGone)
	}))
	p.Cleanup(server.Close)
	fails := server.URL
	// failed waits until so many attempts have failed, and there are so many dead letters. The list that the page shows may
	// be older, but what it says of them is still so.
	failed := func(attempts int64, dead int) {
		p.Helper()
		found := 0
		for until := time.Now().Add(patience); sent.Load() != attempts || found != dead; time.Sleep(50 * time.Millisecond) {
			items, _ := s.send(admin, "GET", "/v1/dead-letters?prefix=dead-&limit=1000", nil, 200)["items"].([]any)
			if found = len(items); time.Now().After(until) {
				s.Fatalf("%d of %d attempts were made, and there are %d of %d dead letters", sent.Load(), attempts, found, dead)
			}
		}
	}
	for i := range 6 {
		s.send(admin, "PUT", fmt.Sprintf("/v1/jobs/dead-%d", i), object{"delay": "1ms", "retry": object{"maxAttempts": 1}, "callback": callback(fails)}, 201)
	}
	p.goTo("dead-letters")
	p.until("all have failed", "document.querySelectorAll('main > .scroll tbody tr').length === 6")
	p.click("Show these")
	p.click("Show all")
	p.click("Look")
	p.see("Delivery id")
	p.click("Close")
	p.ask("Redrive", "Redrive")
	p.see("1 dead letters are due again.")
	failed(7, 6)
	p.until("it is shown again", "document.querySelectorAll('main > .scroll tbody tr').length === 6")
	p.ask("Delete", "Delete")
	p.see("1 dead letters are deleted.")
	p.until("it is gone", "document.querySelectorAll('main > .scroll tbody tr').length === 5")
	p.until("choose two", `(() => {
		const boxes = document.querySelectorAll('tbody input[type=checkbox]');
		if (boxes.length < 5) return false;
		for (const b of [boxes[0], boxes[1]]) if (!b.checked) b.click();
		return !!clickable('Delete 2 chosen');
	})()`)
	p.ask("Delete 2 chosen", "Delete")
	p.see("2 dead letters are deleted.")
	p.until("they are gone", "document.querySelectorAll('main > .scroll tbody tr').length === 3")
	p.ask("Redrive these", "Redrive")
	p.see("3 dead letters are due again.")
	failed(10, 3)
	p.ask("Redrive all", "Redrive")
	failed(13, 3)
	p.until("all are shown again", "document.querySelectorAll('main > .scroll tbody tr').length === 3")
	p.fill("Key begins with", "dead-")
	p.ask("Delete all of the filter", "Delete")
	p.see("everything was delivered.", "None is like that.")
}

// Many dead letters are settled in parts.
func pressManyDeadLetters(p *tab, s *service, admin string) {
	fails := receiver(p, http.StatusGone)
	many := make([]object, 250)
	for i := range many {
		many[i] = object{"key": fmt.Sprintf("many-%d", i), "delay": "1ms", "retry": object{"maxAttempts": 1}, "callback": callback(fails)}
	}
	s.send(admin, "POST", "/v1/jobs/batch", many, 200)
	for failed, until := 0, time.Now().Add(patience); failed < len(many); time.Sleep(50 * time.Millisecond) {
		items, _ := s.send(admin, "GET", "/v1/dead-letters?prefix=many-&limit=1000", nil, 200)["items"].([]any)
		if failed = len(items); time.Now().After(until) {
			s.Fatalf("%d of %d have failed", failed, len(many))
		}
	}
	p.fill("Key begins with", "many-")
	p.see("Page 1")
	p.ask("Delete all of the filter", "Delete")
	p.see("250 dead letters are deleted.")
	p.see("None is like that.")
}

func pressTenants(p *tab, s *service, admin string) {
	p.goTo("tenants")
	p.fill("Another tenant", "acme")
	p.click("Set how it is served")
	p.fill("Weight", "heavy")
	p.click("Store")
	p.until("the field is named", "document.querySelector('dialog[open] .bad')?.innerText.includes('weight')")
	p.fill("Weight", "3")
	p.fill("Priority", "high")
	p.click("Paused: nothing of it fires")
	p.fill("Delivered", "http")
	p.fill("URL", "nowhere")
	p.click("Store")
	p.until("the field of the events is named", "document.querySelector('dialog[open] .bad')?.innerText.includes('/events/callback/data/url')")
	p.fill("URL", "http://127.0.0.1:9/news")
	p.click("Headers, envelope and signature")
	p.fill("Headers", `X-Team: billing`)
	p.click("a missed instant")
	p.fill("At most per minute", "7")
	p.click("Store")
	p.see("The settings of acme are stored.")
	p.click("Settings of acme") // they are shown as stored, and stay when another setting changes
	p.until("the events are shown", "field('URL')?.value === 'http://127.0.0.1:9/news' && field('Headers').value === 'X-Team: billing' && !field('a missed instant').checked")
	p.fill("Weight", "2")
	p.click("Store")
	p.until("the settings are stored", "!document.querySelector('dialog[open]')")
	settings := s.send(admin, "GET", "/v1/tenants/acme", nil, 200)["settings"].(object)
	events := settings["events"].(object)
	if types, _ := events["types"].([]any); len(types) != 7 || events["perMinute"] != 7.0 || settings["weight"] != 2.0 ||
		fmt.Sprint(events["callback"]) != "map[data:map[headers:map[X-Team:billing] url:http://127.0.0.1:9/news] type:http]" {
		p.Errorf("the settings are %v", settings)
	}
	p.until("it is listed", "[...document.querySelectorAll('tr')].some((r) => r.innerText.includes('acme') && r.innerText.includes('paused') && r.innerText.includes('2'))")
	p.click("Settings of acme")
	p.fill("Jobs", "100")
	p.fill("History is kept for", "0")
	p.click("Store the limits")
	p.see("The limits of acme are stored.")
	if limits := fmt.Sprint(s.send(admin, "GET", "/v1/tenants/acme/limits", nil, 200)["own"]); limits != "map[history:0 maxJobs:100]" {
		p.Errorf("the limits are %v", limits)
	}
	p.click("Default limits")
	p.see("acme has the default limits.")
	p.click("Back to the defaults")
	p.see("acme has the default settings.")
}

func pressKeys(p *tab, s *service) {
	p.goTo("keys")
	p.click("New key")
	p.fill("Role", "viewer")
	p.fill("Tenants", "acme")
	p.fill("Note", "of a test")
	p.click("Limits of its own")
	p.fill("Requests per second", "many")
	p.click("Create")
	p.until("the limit is named", "document.querySelector('dialog[open] .bad')?.innerText.includes('/limits/requestsPerSecond')")
	p.fill("Requests per second", "50")
	p.click("Create")
	p.see("This is shown once.")
	first := eval[string](p, "document.querySelector('pre.secret').innerText")
	s.send(first, "GET", "/v1/jobs", nil, 200)
	p.confirm("I have kept it")
	p.see("Requests per second: 50")
	id := strings.Split(first, "_")[1]
	p.click("Rotate " + id)
	p.fill("The present one is valid for another", "0s")
	p.click("Rotate")
	p.see("This is shown once.")
	second := eval[string](p, "document.querySelector('pre.secret').innerText")
	s.send(second, "GET", "/v1/jobs", nil, 200)
	s.send(first, "GET", "/v1/jobs", nil, 401)
	p.confirm("I have kept it")
	p.click("Revoke " + id)
	p.confirm("Revoke")
	p.see("is revoked.")
	s.send(second, "GET", "/v1/jobs", nil, 401)
	p.until("neither secret is on the page", "!document.documentElement.outerHTML.includes("+quote(second)+")")
}

func pressSecrets(p *tab) {
	p.goTo("secrets")
	p.click("New signing secret")
	p.click("Create")
	p.see("whsec_")
	p.confirm("I have kept it")
	p.gone("whsec_")
	p.click("Rotate default")
	p.fill("The present one signs for another", "1h")
	p.click("Rotate")
	p.see("whsec_")
	p.confirm("I have kept it")
	p.see("the one before, until")
	p.ask("Delete default", "Delete")
	p.see("deliveries are not signed.")
	p.click("New secret")
	p.fill("Name", "token")
	p.fill("Value", "hunter2")
	p.fill("May be sent to", "http https://api.example.com")
	p.click("Store")
	p.see("The secret token is stored.")
	p.until("its value is nowhere", "!document.documentElement.outerHTML.includes('hunter2')")
	p.click("Set token")
	p.fill("Value", "hunter3")
	p.click("Store")
	p.gone("Store nothing")
	p.ask("Delete token", "Delete")
	p.see("The secret token is deleted.")
}

// The page does not offer actions beyond the role, or screens beyond the key. One page is for all users, one after the
// other: nothing of the last one stays.
func TestRoles(t *testing.T) {
	t.Parallel()
	s := serve(t, "")
	admin := s.key("admin")
	s.send(admin, "PUT", "/v1/jobs/team%2Fk", object{"delay": "1d", "callback": callback("http://127.0.0.1:9/")}, 201)
	s.send(admin, "PUT", "/v1/jobs/team%2Fdead", object{"delay": "1ms", "retry": object{"maxAttempts": 1}, "callback": callback(receiver(t, 410))}, 201)
	s.send(admin, "POST", "/v1/signing-secrets", object{"name": "default"}, 201)
	const submits, operates, administers = 1, 2, 3
	buttons := []struct {
		path, sees, button string
		from               int
	}{
		{"jobs", "team/k", "New job", submits},
		{"jobs/team%2Fk", "History", "Edit", submits},
		{"jobs/team%2Fk", "History", "Cancel", submits},
		{"jobs/team%2Fk", "History", "Pause", operates},
		{"jobs/team%2Fk", "History", "Fire now", operates},
		{"dead-letters", "410 Gone", "Redrive", operates},
		{"dead-letters", "410 Gone", "Delete all", operates},
		{"secrets", "default", "New secret", operates},
		{"secrets", "the present one", "Rotate default", operates},
		{"tenants", "served", "Set how it is served", operates},
		{"", "Destinations", "Keys", administers},
	}
	p := open(t, s.url)
	for may, role := range []string{"viewer", "submitter", "operator", "admin"} {
		p.signIn(s.key(role))
		if role == "operator" {
			p.goTo("tenants")
			p.fill("Another tenant", "x")
		}
		for _, b := range buttons {
			p.goTo(b.path)
			p.see(b.sees)
			want := may >= b.from
			if b.button == "Set how it is served" {
				if got := p.is("text().includes('Another tenant')"); got != want {
					t.Errorf("%s: %s is offered: %t", role, b.button, got)
				}
			} else if got := p.is("clickable(" + quote(b.button) + ")"); got != want {
				t.Errorf("%s: %s: %s is offered: %t", role, b.path, b.button, got)
			}
		}
		p.signOut()
	}

	p.signIn(s.key("admin", "--tenant=default", "--key-prefix=team/"))
	p.see("Your key is for jobs whose keys have a prefix.")
	if p.is("clickable('Secrets')") {
		t.Error("secrets are offered to a key with a prefix")
	}
	p.goTo("jobs")
	p.see("team/k")
}

// A wrong key is refused. The session keeps the key out of reach of scripts, and ends with a sign-out or with its key.
func TestSignIn(t *testing.T) {
	t.Parallel()
	s := serve(t, "")
	key := s.key("operator")
	p := open(t, s.url)
	p.expects("status of 401")
	wrong := key[:len(key)-1] + "x"
	if wrong == key {
		wrong = key[:len(key)-1] + "y"
	}
	p.fill("Key", wrong)
	p.click("Sign in")
	p.see("the key or token is not valid")
	p.signIn(key)
	if kept := eval[string](p, "document.cookie + JSON.stringify(localStorage) + JSON.stringify(sessionStorage) + document.documentElement.outerHTML"); strings.Contains(kept, key) || strings.Contains(kept, "carillon_session") {
		t.Errorf("scripts can read %s", kept)
	}
	p.goTo("jobs")
	other := p.another()
	other.expects("status of 401")
	other.see("Overview") // the session is the browser's
	p.signOut()
	other.goTo("jobs")
	other.see("Sign in with an API key.") // at the next request
	other.signIn(key)
	other.see("There are no jobs yet.")

	// The keyboard is enough: the first link leads past the navigation.
	other.run(chromedp.KeyEvent("\t"))
	other.until("the skip link has the focus", "document.activeElement.innerText === 'To the content' || (document.activeElement.blur?.(), false)")
	other.run(chromedp.KeyEvent("\r"))
	other.until("the content has the focus", "document.activeElement.id === 'main'")

	id := strings.Split(key, "_")[1]
	s.send(s.key("admin"), "DELETE", "/v1/keys/"+id, nil, 204)
	other.see("Sign in with an API key.")
}

// Two people edit one job. The second one gets a message, loses no input, and does not undo the first one's change.
func TestTwoTabs(t *testing.T) {
	t.Parallel()
	s := serve(t, "")
	key := s.key("submitter")
	s.send(key, "PUT", "/v1/jobs/k", object{"delay": "1d", "callback": callback("http://127.0.0.1:9/")}, 201)
	p := open(t, s.url).signIn(key)
	p.expects("status of 412")
	p.goTo("jobs/k/edit")
	p.see(`"delay"`, "The job, as JSON")
	other := p.another()
	other.goTo("jobs/k/edit")
	change := func(p *tab, from, to string) {
		p.Helper()
		p.until("edit", `(() => {
			const e = field('The job, as JSON');
			if (!e || !e.value.includes(`+quote(from)+`)) return false;
			e.value = e.value.replace(`+quote(from)+`, `+quote(to)+`);
			e.dispatchEvent(new Event('input', {bubbles: true}));
			return true;
		})()`)
		p.click("Store the change")
	}
	change(other, `"large": 1234567890`, `"large": 1`)
	other.see("The job is changed.")
	change(p, `"payload": {`, `"payload": { "more": true,`)
	p.see("Somebody has changed this job since you opened it")
	p.click("Apply my changes to the present job")
	p.until("both changes are there", `field('The job, as JSON')?.value.includes('"more": true') && field('The job, as JSON').value.includes('"large": 1\n') || field('The job, as JSON')?.value.includes('"large": 1,')`)
	p.click("Store the change")
	p.see("The job is changed.")
	answer := fmt.Sprint(s.send(key, "GET", "/v1/jobs/k", nil, 200)["callback"])
	if !strings.Contains(answer, "more:true") || !strings.Contains(answer, "large:1 ") {
		t.Errorf("the job has %s", answer)
	}

	// A job that was changed while the dialog was open is not cancelled.
	p.goTo("jobs/k")
	p.until("be asked", "document.querySelector('dialog[open]') || (clickable('Cancel')?.click(), false)")
	other.goTo("jobs/k/edit")
	other.gone("The job is changed.") // the message about its first change stays for some seconds
	change(other, `"large": 1`, `"large": 2`)
	other.see("The job is changed.")
	p.confirm("Cancel the job")
	p.see("so it was not cancelled")
	p.see(`"large": 2`)
	p.expects("status of 404")
	p.ask("Cancel", "Cancel the job")
	p.see("The job is cancelled: 1 occurrences will never fire")
}

// The page opens jobs with any key, including keys that browsers treat as folders.
func TestKeysOfJobs(t *testing.T) {
	t.Parallel()
	s := serve(t, "")
	key := s.key("operator")
	keys := []string{".", "..", "../..", "a/b", "/", "%", "%2e%2e", "100%/?#&=+ ;", "edit", "a/edit", "$carillon", "ü\u2028"}
	for _, k := range keys {
		s.send(key, "POST", "/v1/jobs", object{"key": k, "crontab": "@daily", "callback": callback("http://127.0.0.1:9/")}, 201)
	}
	p := open(t, s.url).signIn(key)
	for _, k := range keys {
		p.goTo("jobs")
		p.until("open "+k, "(() => { const link = [...document.querySelectorAll('td.key a')].find((a) => a.textContent === "+quote(k)+"); link?.click(); return link; })()")
		p.until(k+" is shown", "document.querySelector('h1')?.textContent === "+quote(k)+" && text().includes('What it does') && document.querySelector('.track .instant')")
		p.click("Pause")
		p.see("The job is paused.")
		p.click("Resume")
		p.until("it goes on", "clickable('Pause')")
	}
	p.expects("status of 404") // once they are cancelled
	for _, k := range []string{".", ".."} {
		p.goTo("jobs/" + k)
		p.click("Edit")
		p.fill("Spread", "5m")
		p.click("Store the change")
		p.see("The job is changed.")
		p.ask("Cancel", "Cancel the job")
		p.see("occurrences will never fire")
	}
}

// A replica refuses a request that it handles late, if another replica has changed the job meanwhile.
func TestOvertaken(t *testing.T) {
	t.Parallel()
	redis := os.Getenv("CARILLON_TEST_REDIS_URL")
	if redis == "" {
		t.Fatal("CARILLON_TEST_REDIS_URL is not set: run this by .ci/with-services")
	}
	// Not SQLite: the stopped process could hold the lock of the file.
	store := redis + fmt.Sprintf("?prefix=ui%d", time.Now().UnixNano())
	s, other := serve(t, store), serve(t, store)
	key := s.key("submitter")
	s.send(key, "PUT", "/v1/jobs/k", object{"delay": "1d", "callback": callback("http://127.0.0.1:9/")}, 201)
	p := open(t, s.url).signIn(key)
	p.expects("status of 409")
	p.goTo("new")
	p.fill("Key", "k")
	p.fill("URL", "http://127.0.0.1:9/mine")
	p.click("Replace a job of this key, if there is one")
	p.see("Wall times in")

	s.stop()
	p.click("Create or replace")
	s.received()
	elsewhere := p.at(other.url) // the session is valid on the same host
	elsewhere.goTo("jobs/k/edit")
	elsewhere.fill("Spread", "5m")
	elsewhere.click("Store the change")
	elsewhere.see("The job is changed.")
	s.goOn()

	p.see("a later request has changed the job; this request has changed nothing")
	if spread, _ := s.send(key, "GET", "/v1/jobs/k", nil, 200)["spread"].(string); !strings.HasPrefix(spread, "5m") {
		t.Errorf("the job has the spread %s", spread)
	}
	p.click("Create or replace") // now the user has seen the message
	p.see("The job is replaced.")
	p.see("http://127.0.0.1:9/mine")
}

// stop stops the process until goOn.
func (s *service) stop() {
	s.Helper()
	if err := s.process.Signal(syscall.SIGSTOP); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(s.goOn)
	s.await("it stands still", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.process.Pid))
		_, state, _ := strings.Cut(string(stat), ") ")
		return err == nil && strings.HasPrefix(state, "T")
	})
}

func (s *service) goOn() { _ = s.process.Signal(syscall.SIGCONT) }

// received waits until the stopped process has something to read.
func (s *service) received() {
	s.Helper()
	port, err := strconv.Atoi(s.url[strings.LastIndex(s.url, ":")+1:])
	if err != nil {
		s.Fatal(err)
	}
	unread := regexp.MustCompile(fmt.Sprintf(`(?m)^ *\d+: 0100007F:%04X [0-9A-F:]+ 01 [0-9A-F]+:0*[1-9A-F]`, port))
	s.await("it has something to read", func() bool {
		connections, err := os.ReadFile("/proc/net/tcp")
		return err == nil && unread.Match(connections)
	})
}

func (s *service) await(what string, is func() bool) {
	s.Helper()
	for until := time.Now().Add(patience); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(until) {
			s.Fatalf("%s: it does not come about", what)
		}
	}
}

// During an outage of the store, the page says so and keeps its content. It recovers by itself.
func TestStoreAway(t *testing.T) {
	t.Parallel()
	redis := os.Getenv("CARILLON_TEST_REDIS_URL")
	if redis == "" {
		t.Fatal("CARILLON_TEST_REDIS_URL is not set: run this by .ci/with-services")
	}
	host := strings.Split(strings.TrimPrefix(redis, "redis://"), "/")[0]
	link := newLink(t, host)
	s := serve(t, strings.Replace(redis, host, link.address, 1)+fmt.Sprintf("?prefix=ui%d", time.Now().UnixNano()))
	key := s.key("operator")
	s.send(key, "PUT", "/v1/jobs/k", object{"delay": "1d", "callback": callback("http://127.0.0.1:9/")}, 201)
	p := open(t, s.url).signIn(key)
	p.expects("status of 503", "status of 500")
	p.goTo("jobs")
	p.see("scheduled")
	link.cut(true)
	p.see("its store does not, or is overloaded")
	p.see("scheduled")
	link.cut(false)
	p.gone("its store does not, or is overloaded")
	s.send(key, "PUT", "/v1/jobs/later", object{"delay": "1d", "callback": callback("http://127.0.0.1:9/")}, 201)
	p.see("later")
}

// link is a connection to a server that can be cut.
type link struct {
	address string
	set     chan bool
}

func newLink(t testing.TB, to string) *link {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	l := &link{listener.Addr().String(), make(chan bool)}
	accepted := make(chan net.Conn)
	go func() {
		defer close(accepted)
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			accepted <- c
		}
	}()
	go func() {
		var open []net.Conn
		cut := false
		end := func() {
			for _, c := range open {
				_ = c.Close()
			}
			open = nil
		}
		defer end()
		for {
			select {
			case cut = <-l.set:
				end()
			case c, ok := <-accepted:
				if !ok {
					return
				}
				there, err := net.Dial("tcp", to)
				if cut || err != nil {
					_ = c.Close()
					if err == nil {
						_ = there.Close()
					}
					continue
				}
				open = append(open, c, there)
				go pipe(c, there)
				go pipe(there, c)
			}
		}
	}()
	return l
}

func (l *link) cut(is bool) { l.set <- is }

func pipe(from, to net.Conn) {
	defer to.Close()
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
