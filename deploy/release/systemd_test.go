package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// checkSystemd installs a package on a machine with systemd, and uses it according to docs/deploy.md. The machine is a
// view of this one in namespaces of its own, which requires root's rights.
func checkSystemd(t *testing.T, path string) {
	if os.Geteuid() != 0 {
		t.Fatal("systemd can only be started by root")
	}
	run := boot(t)
	deb, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	run(string(deb), "cat > /carillon.deb")
	run("", "apt-get install --yes /carillon.deb")
	if state := run("", "systemctl is-active carillon || true"); state != "inactive" {
		t.Errorf("after its installation, the service is %s", state)
	}
	run("", "systemctl enable --now carillon")
	// The command prints the administrator's key alone on standard output.
	key := run("", "carillon keys create --store=sqlite:/var/lib/carillon/carillon.db --role=admin 2>/dev/null")
	cli := "CARILLON_KEY=" + key + " carillon "
	const job = `{"schedules": ["2099-01-01T00:00:00Z"], "callback": {"type": "http", "data": {"url": "http://127.0.0.1:9/"}}}`
	run(job, until(cli+"job list")+cli+"job put kept -f -")

	process := func() string { return run("", "systemctl show -P MainPID carillon") }
	first := process()
	status := run("", "cat /proc/"+first+"/status; ! grep carillon /etc/passwd")
	for _, want := range []string{`Uid:\s+6\d{4}\s`, `CapEff:\s+0+\n`, `CapBnd:\s+0+\n`, `NoNewPrivs:\s+1\n`, `Seccomp:\s+2\n`} {
		if !regexp.MustCompile(want).MatchString(status) {
			t.Errorf("its process has no %s:\n%s", want, status)
		}
	}

	restarted := func(after string) {
		t.Helper()
		before := process()
		run("", after)
		run("", until(`pid=$(systemctl show -P MainPID carillon); test "$pid" != 0 -a "$pid" != `+before)+until(cli+"job get kept"))
	}
	restarted("systemctl kill --signal=KILL carillon")
	restarted("dpkg --install /carillon.deb")

	run("", "echo CARILLON_TICK=never >> /etc/carillon/carillon.env; ! systemctl restart carillon || "+
		until("systemctl is-failed carillon"))
	if ended := run("", "systemctl show -P ExecMainStatus -P ActiveState carillon"); ended != "2\nfailed" {
		t.Errorf("with a wrong configuration, it is %q, want 2 and failed", ended)
	}
	if said := run("", "journalctl --unit=carillon --lines=5"); !strings.Contains(said, "CARILLON_TICK") {
		t.Errorf("the log does not name the wrong variable:\n%s", said)
	}
	run("", "sed -i /CARILLON_TICK/d /etc/carillon/carillon.env; systemctl start carillon")

	run("", "apt-get remove --yes carillon; ! systemctl is-active carillon; test -s /var/lib/carillon/carillon.db")
}

// until returns a shell loop that repeats a command until it succeeds.
func until(command string) string {
	return fmt.Sprintf("timeout %d sh -c %s || exit 1\n", int(patience.Seconds()),
		quoted("until "+command+"; do sleep 0.2; done >/dev/null 2>&1"))
}

func quoted(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// boot starts systemd. Run executes commands in a shell of that machine, with some input, and returns their output.
func boot(t *testing.T) (run func(input, commands string) string) {
	root := "/sys/fs/cgroup/unified"
	if _, err := os.Stat(root); err != nil {
		root = "/sys/fs/cgroup"
	}
	group := filepath.Join(root, fmt.Sprintf("carillon-test-%d", os.Getpid()))
	machine := exec.Command("testdata/boot", group)
	var console bytes.Buffer
	machine.Stdout, machine.Stderr = &console, &console
	if err := machine.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = machine.Process.Kill()
		_ = machine.Wait()
		if t.Failed() {
			t.Logf("the machine's console:\n%s", &console)
		}
		for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) { // its processes are still ending
			err := exec.Command("find", group, "-depth", "-type", "d", "-exec", "rmdir", "{}", "+").Run()
			if err == nil {
				break
			}
			if time.Now().After(deadline) {
				t.Error(err)
				break
			}
		}
	})
	enter := func() *exec.Cmd {
		first, err := exec.Command("pgrep", "--parent", strconv.Itoa(machine.Process.Pid)).Output()
		if err != nil {
			return nil
		}
		return exec.Command("nsenter", "--target", strings.TrimSpace(string(first)), "--all", "--root", "--wd=/", "sh", "-euc")
	}
	deadline := time.Now().Add(patience)
	for {
		if c := enter(); c != nil {
			c.Args = append(c.Args, "systemctl is-system-running --wait")
			if said, _ := c.Output(); bytes.HasPrefix(said, []byte("running")) || bytes.HasPrefix(said, []byte("degraded")) {
				break
			}
		}
		if time.Now().After(deadline) {
			t.Fatal("systemd does not run")
		}
		time.Sleep(100 * time.Millisecond)
	}
	return func(input, commands string) string {
		t.Helper()
		c := enter()
		c.Args = append(c.Args, commands)
		c.Stdin = strings.NewReader(input)
		var said, complaint bytes.Buffer
		c.Stdout, c.Stderr = &said, &complaint
		if err := c.Run(); err != nil {
			t.Errorf("%s: %v\n%s%s", commands, err, &said, &complaint)
			c := enter()
			c.Args = append(c.Args, "systemctl status carillon; journalctl --unit=carillon --lines=20")
			logged, _ := c.CombinedOutput()
			t.Fatalf("%s", logged)
		}
		return strings.TrimSpace(said.String())
	}
}
