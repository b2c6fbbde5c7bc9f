package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"
)

// A part is a process that the bench has started. It receives requests and sends answers as lines of JSON on its
// standard input and output, and ends when its input does.
type part struct {
	role    string
	cmd     *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader
	lock    sync.Mutex // held during a call
	stopped bool
}

// request is a line of a part's input.
type request struct {
	Do   string          `json:"do"`
	With json.RawMessage `json:"with,omitempty"`
}

// answer is a line of a part's output.
type answer struct {
	Error string          `json:"error,omitempty"`
	Value json.RawMessage `json:"value,omitempty"`
}

// startPart starts a process for a role, calls its "begin" with the given parameters, and reads the answer into value.
func (b *Bench) startPart(ctx context.Context, role string, with, value any) (*part, error) {
	p := &part{role: role}
	p.cmd = exec.Command(b.Part[0], append(b.Part[1:], role)...) //nolint:gosec // this program itself
	p.cmd.Stderr = os.Stderr
	detach(p.cmd)
	var err error
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = bufio.NewReaderSize(out, 1<<16)
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start a %s: %w", role, err)
	}
	b.parts = append(b.parts, p)
	return p, p.call(ctx, "begin", with, value)
}

// call makes a request of a part and reads its answer into value, unless that is nil. If ctx ends first, call kills the
// part.
func (p *part) call(ctx context.Context, do string, with, value any) error {
	p.lock.Lock()
	defer p.lock.Unlock()
	stop := context.AfterFunc(ctx, func() { _ = p.cmd.Process.Kill() })
	defer stop()
	err := p.exchange(do, with, value)
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("the %s: %w", p.role, err)
	}
	return nil
}

func (p *part) exchange(do string, with, value any) error {
	encoded, err := json.Marshal(with)
	if err != nil {
		return err
	}
	line, err := json.Marshal(request{Do: do, With: encoded})
	if err != nil {
		return err
	}
	if _, err := p.in.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("it has ended: %w", err)
	}
	line, err = p.out.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("it has ended: %w", err)
	}
	var a answer
	if err := json.Unmarshal(line, &a); err != nil {
		return err
	}
	if a.Error != "" {
		return errors.New(a.Error)
	}
	if value == nil {
		return nil
	}
	return json.Unmarshal(a.Value, value)
}

// stop ends the part in good order, and kills it after 30 s.
func (p *part) stop() error {
	if p.stopped {
		return nil
	}
	p.stopped = true
	_ = p.in.Close() // the part ends with its input
	kill := time.AfterFunc(30*time.Second, func() { _ = p.cmd.Process.Kill() })
	defer kill.Stop()
	if err := p.cmd.Wait(); err != nil {
		return fmt.Errorf("the %s ended: %w", p.role, err)
	}
	return nil
}

// stopParts stops all parts.
func (b *Bench) stopParts() error {
	var errs []error
	for _, p := range b.parts {
		errs = append(errs, p.stop())
	}
	b.parts = nil
	return errors.Join(errs...)
}

// RunPart runs a role of another process's bench until in ends.
func RunPart(ctx context.Context, role string, in io.Reader, out, stderr io.Writer) error {
	var r interface {
		do(ctx context.Context, do string, with json.RawMessage) (any, error)
		close() error
	}
	switch role {
	case replicaRole:
		r = &replica{stderr: stderr}
	case receiverRole:
		r = &receiver{}
	case gatherRole:
		r = &gatherer{}
	case clientRole:
		r = &client{}
	default:
		return fmt.Errorf("there is no role %q", role)
	}
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return r.close()
		}
		var q request
		var a answer
		if err := json.Unmarshal(line, &q); err != nil {
			return errors.Join(err, r.close())
		}
		value, err := r.do(ctx, q.Do, q.With)
		if err == nil {
			a.Value, err = json.Marshal(value)
		}
		if err != nil {
			a = answer{Error: err.Error()}
		}
		line, err = json.Marshal(a)
		if err != nil {
			return errors.Join(err, r.close())
		}
		if _, err := out.Write(append(line, '\n')); err != nil {
			return r.close() // the bench no longer reads
		}
	}
}
