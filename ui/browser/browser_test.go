// Package browser_test drives the web page in a real Chromium, against the built program. It is a module of its own, so
// that the program's module requires no library for browsers.
package browser_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// patience limits each wait. It is generous, since the machine may be busy.
const patience = 2 * time.Minute

var (
	program string
	browser context.Context
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "carillon-browser-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	// The build writes the program in bin only if it is out of date. The tests run a copy, since bin may change meanwhile.
	program = filepath.Join(dir, "carillon")
	if out, err := exec.Command("sh", "-c", `../../.ci/build ../../bin/carillon && cp ../../bin/carillon "$1"`, "sh", program).CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "%s%v\n", out, err)
		return 1
	}
	chromium := os.Getenv("CARILLON_TEST_CHROMIUM")
	if chromium == "" {
		chromium = "/usr/bin/chromium"
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(chromium), chromedp.UserDataDir(filepath.Join(dir, "profile")),
		chromedp.WSURLReadTimeout(patience), chromedp.Flag("lang", "en-GB"), chromedp.Flag("disable-dev-shm-usage", true))
	// Tabs of one profile share a process, as do the pages that a tab shows one after the other. A process lives for so short
	// a time that the optimizing compilers of JavaScript, and threads to collect its garbage, cost more than they save.
	options = append(options, chromedp.Flag("disable-site-isolation-trials", true), chromedp.Flag("process-per-site", true),
		chromedp.Flag("js-flags", "--no-opt,--no-maglev,--single-threaded-gc"))
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox) // Chromium's sandbox does not work as root
	}
	allocator, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	defer cancel()
	ctx, cancel := chromedp.NewContext(allocator)
	defer cancel()
	if err := chromedp.Do(ctx); err != nil {
		fmt.Fprintln(os.Stderr, chromium, err)
		return 1
	}
	browser = ctx
	return m.Run()
}

// service is a running program.
type service struct {
	testing.TB
	url, store string
	process    *os.Process
}

// buffer collects the output of a program.
type buffer struct {
	mutex sync.Mutex
	text  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	return b.text.Write(p)
}

func (b *buffer) String() string {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	return b.text.String()
}

// launch runs the program until the test ends, and returns the match of a pattern in its output.
func launch(t testing.TB, pattern string, args ...string) (string, *os.Process) {
	t.Helper()
	command, out := exec.Command(program, args...), &buffer{}
	command.Stdout, command.Stderr = out, out
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Signal(syscall.SIGTERM)
		_ = command.Wait()
		if t.Failed() {
			t.Logf("the service's log: %s", out)
		}
	})
	find := regexp.MustCompile(pattern)
	for until := time.Now().Add(patience); time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
		if found := find.FindStringSubmatch(out.String()); found != nil {
			return found[1], command.Process
		}
	}
	t.Fatalf("the program does not start: %s", out)
	return "", nil
}

// serve starts a service that requires keys, on a store, or on an SQLite file of its own.
func serve(t testing.TB, store string, args ...string) *service {
	t.Helper()
	dir := t.TempDir()
	if store == "" {
		store = "sqlite:" + filepath.Join(dir, "carillon.db")
	}
	key := filepath.Join(dir, "encryption.key")
	if out, err := exec.Command(program, "secrets", "new-key", key).CombinedOutput(); err != nil {
		t.Fatalf("%s%v", out, err)
	}
	address, process := launch(t, `msg=serving address=(\S+)`, append([]string{"serve", "--store=" + store, "--auth=keys", "--listen=127.0.0.1:0",
		"--encryption-key-file=" + key, "--shutdown-timeout=1s"}, args...)...)
	return &service{t, "http://" + address, store, process}
}

// key creates a key.
func (s *service) key(role string, more ...string) string {
	s.Helper()
	out, err := exec.Command(program, append([]string{"keys", "create", "--store=" + s.store, "--role=" + role}, more...)...).Output()
	if err != nil {
		s.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// send makes a request like a client, and returns the answer.
func (s *service) send(key, method, path string, body any, want int) map[string]any {
	s.Helper()
	encoded, err := json.Marshal(body)
	if err != nil {
		s.Fatal(err)
	}
	request, err := http.NewRequestWithContext(s.Context(), method, s.url+path, bytes.NewReader(encoded))
	if err != nil {
		s.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+key)
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		s.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		s.Fatal(err)
	}
	if response.StatusCode != want {
		s.Fatalf("%s %s is answered %d: %s", method, path, response.StatusCode, text)
	}
	var answer map[string]any
	_ = json.Unmarshal(text, &answer) // some answers have no object
	return answer
}

// tab is a page in the browser.
type tab struct {
	testing.TB
	ctx context.Context
	url string

	mutex  sync.Mutex
	faults []string
	// expected are the error statuses that the page may receive. The browser reports them.
	expected []string
}

// open opens a service's page in a fresh profile.
func open(t testing.TB, url string) *tab {
	t.Helper()
	ctx, cancel := chromedp.NewContext(browser, chromedp.WithNewBrowserContext())
	t.Cleanup(cancel)
	return openIn(t, ctx, url)
}

// another opens the page once more, in the same profile.
func (p *tab) another() *tab {
	p.Helper()
	return p.at(p.url)
}

// at opens another service's page in the same profile.
func (p *tab) at(url string) *tab {
	p.Helper()
	ctx, cancel := chromedp.NewContext(p.ctx)
	p.Cleanup(cancel)
	return openIn(p.TB, ctx, url)
}

func openIn(t testing.TB, ctx context.Context, url string) *tab {
	t.Helper()
	p := &tab{TB: t, ctx: ctx, url: url, expected: []string{"/v1/session"}} // at first, no user is signed in
	if err := chromedp.Listen(ctx, p.listen); err != nil {
		t.Fatal(err)
	}
	do(p, func(ctx context.Context) (cdp.Empty, error) {
		return chromedp.Call(ctx, emulation.SetTimezoneOverride, emulation.SetTimezoneOverrideParams{TimezoneID: "Europe/Berlin"})
	})
	do(p, func(ctx context.Context) (cdp.Empty, error) {
		return chromedp.Call(ctx, emulation.SetFocusEmulationEnabled, emulation.SetFocusEmulationEnabledParams{Enabled: true})
	})
	do(p, func(ctx context.Context) (cdp.Empty, error) { return chromedp.Call(ctx, log.Enable, cdp.Empty{}) })
	p.run(chromedp.EmulateViewport(1360, 900), chromedp.Navigate(url+"/ui/"))
	t.Cleanup(func() {
		p.mutex.Lock()
		defer p.mutex.Unlock()
		for _, f := range p.faults {
			t.Errorf("the page has a fault: %s", f)
		}
	})
	return p
}

// listen collects the browser's reports: exceptions, errors on the console, and violations of the policy.
func (p *tab) listen(event any) {
	fault := ""
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		fault = "an exception: " + e.ExceptionDetails.Text
		if thrown := e.ExceptionDetails.Exception; thrown != nil {
			fault += " " + thrown.Description
		}
	case *runtime.EventConsoleAPICalled:
		fault = fmt.Sprint("console.", e.Type)
		for _, a := range e.Args {
			fault += " " + string(a.Value) + a.Description
		}
	case *log.EventEntryAdded:
		if e.Entry.Level != log.EntryLevelError && e.Entry.Level != log.EntryLevelWarning {
			return
		}
		fault = fmt.Sprintf("%s: %s %s", e.Entry.Source, e.Entry.Text, e.Entry.URL)
	case *page.EventJavascriptDialogOpening:
		fault = "a dialog: " + e.Message
	default:
		return
	}
	p.mutex.Lock()
	defer p.mutex.Unlock()
	for _, x := range p.expected {
		if strings.Contains(fault, x) {
			return
		}
	}
	p.faults = append(p.faults, fault)
}

// expects allows some of the browser's reports.
func (p *tab) expects(texts ...string) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.expected = append(p.expected, texts...)
}

func (p *tab) run(actions ...chromedp.Action[chromedp.Void]) {
	p.Helper()
	do(p, func(ctx context.Context) (chromedp.Void, error) { return chromedp.Void{}, chromedp.Do(ctx, actions...) })
}

// do calls the browser, with a time limit.
func do[T any](p *tab, call func(context.Context) (T, error)) T {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	result, err := call(ctx)
	if err != nil {
		p.Fatal(err)
	}
	return result
}

// eval returns the value of a script's expression.
func eval[T any](p *tab, expression string) T {
	p.Helper()
	return do(p, func(ctx context.Context) (T, error) {
		return chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	})
}

// find is a part of all scripts. It finds elements by their visible text, as people do.
const find = `
const shown = (e) => e.checkVisibility({visibilityProperty: true});
const top = () => document.querySelector('dialog[open]') ?? document;
const nameOf = (e) => (e.getAttribute('aria-label') ?? e.innerText ?? '').trim().replace(/\s+/g, ' ');
const clickable = (name) => [...top().querySelectorAll('button, a, summary, label')].find((e) => shown(e) && !e.disabled && nameOf(e) === name);
const field = (name) => {
  const label = [...top().querySelectorAll('label')].find((l) => shown(l) && nameOf(l) === name);
  return label && (document.getElementById(label.htmlFor) ?? label.querySelector('input, select'));
};
const text = () => (document.querySelector('dialog[open]')?.innerText ?? '') + '\n' + document.body.innerText;
`

// until waits until a script's expression is true.
func (p *tab) until(what, expression string) {
	p.Helper()
	deadline := time.Now().Add(patience)
	for {
		is, err := chromedp.Run(p.ctx, chromedp.Evaluate[bool]("(() => {"+find+"return !!("+expression+")})()"))
		if err == nil && is {
			return
		}
		if time.Now().After(deadline) {
			text, _ := chromedp.Run(p.ctx, chromedp.Evaluate[string]("document.body.innerText"))
			p.Fatalf("%s: it does not come about (%v); the page shows\n%s", what, err, text)
		}
		time.Sleep(30 * time.Millisecond)
	}
}

// is reports whether an expression is true now.
func (p *tab) is(expression string) bool {
	p.Helper()
	return eval[bool](p, "(() => {"+find+"return !!("+expression+")})()")
}

func quote(s string) string {
	b, _ := json.Marshal(s)
	return string(b)
}

// click clicks the element with that name as soon as it is visible and enabled.
func (p *tab) click(name string) {
	p.Helper()
	p.until("click "+name, "clickable("+quote(name)+") && (clickable("+quote(name)+").click(), true)")
}

// ask clicks a button until a dialog opens, and answers it. A click is lost if it hits a list that is just being
// redrawn.
func (p *tab) ask(button, answer string) {
	p.Helper()
	p.until("be asked after "+button, "document.querySelector('dialog[open]') || (clickable("+quote(button)+")?.click(), false)")
	p.confirm(answer)
}

// confirm answers the dialog that asks before a change, and waits until it is closed.
func (p *tab) confirm(name string) {
	p.Helper()
	p.until("be asked", "document.querySelector('dialog[open]')")
	p.click(name)
	p.until("the dialog is closed", "!document.querySelector('dialog[open]')")
}

// fill enters a value into the field with a label, or chooses it.
func (p *tab) fill(label, value string) {
	p.Helper()
	p.until("fill "+label, `(() => {
		const e = field(`+quote(label)+`);
		if (!e || e.disabled) return false;
		e.focus();
		e.value = `+quote(value)+`;
		e.dispatchEvent(new Event(e.tagName === 'SELECT' ? 'change' : 'input', {bubbles: true}));
		return true;
	})()`)
}

// see waits until one of the texts is shown.
func (p *tab) see(texts ...string) {
	p.Helper()
	list, _ := json.Marshal(texts)
	p.until("see "+strings.Join(texts, " or "), string(list)+".some((t) => text().includes(t))")
}

// gone waits until a text is no longer shown.
func (p *tab) gone(text string) {
	p.Helper()
	p.until("no longer see "+text, "!text().includes("+quote(text)+")")
}

// goTo shows a screen.
func (p *tab) goTo(path string) {
	p.Helper()
	p.until("go to "+path, "(location.hash = "+quote("#/"+path)+", true)")
}

// signIn signs in with a key.
func (p *tab) signIn(key string) *tab {
	p.Helper()
	p.expects("status of 401")
	p.fill("Key", key)
	p.click("Sign in")
	p.until("be signed in", "document.querySelector('header.top')")
	return p
}

// signOut signs out.
func (p *tab) signOut() {
	p.Helper()
	p.click("Sign out")
	p.see("Sign in with an API key.")
}

var axe = sync.OnceValues(func() (string, error) {
	b, err := os.ReadFile("../node_modules/axe-core/axe.min.js")
	return string(b), err
})

// accessible fails if axe has serious findings.
func (p *tab) accessible(where string) {
	p.Helper()
	source, err := axe()
	if err != nil {
		p.Fatalf("%v: .ci/ui installs axe-core", err)
	}
	found := eval[string](p, `(() => { if (!window.axe) { `+source+` }
		return axe.run(document, {preload: false, selectors: false, resultTypes: ['violations']}).then((r) => r.violations
			.filter((v) => ['serious', 'critical', 'moderate'].includes(v.impact))
			.map((v) => v.id + ' (' + v.impact + '): ' + v.nodes.slice(0, 3).map((n) => n.html.slice(0, 200) + ' ' + (n.any[0]?.message ?? '')).join(' | ')).join('\n'));
	})()`)
	if found != "" {
		p.Errorf("%s: axe finds\n%s", where, found)
	}
}

// shoot takes a screenshot.
func (p *tab) shoot(path string, width, height int64) {
	p.Helper()
	p.run(chromedp.EmulateViewport(width, height), chromedp.Sleep(300*time.Millisecond)) // charts follow the width
	picture := do(p, func(ctx context.Context) ([]byte, error) {
		shot, err := chromedp.Call(ctx, page.CaptureScreenshot, page.CaptureScreenshotParams{Format: page.CaptureScreenshotFormatWebp, Quality: new(int64(80))})
		return shot.Data, err
	})
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		p.Fatal(err)
	}
	if err := os.WriteFile(path, picture, 0o644); err != nil {
		p.Fatal(err)
	}
}

func escape(key string) string { return url.PathEscape(key) }
