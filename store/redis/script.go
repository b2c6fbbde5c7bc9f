package redis

import (
	"cmp"
	"context"
	"crypto/sha1" //nolint:gosec // by which Redis names scripts
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/carillon-scheduler/carillon/store"
)

//go:embed scripts/*.lua
var sources embed.FS

// script is a Lua script. Servers know it by the hash of its text once they have run it.
type script struct {
	text, hash string
	// bounded reports that the script takes effect before its context's deadline or never, see [clock].
	bounded bool
}

// newScript reads a script's file and inserts the functions of prelude.lua that it uses after its first line. The flag
// allow-oom in that line lets the server run the script when its memory is used up. Scripts that free memory have it,
// so that a full store still empties.
func newScript(name string) *script {
	first, body, _ := strings.Cut(source(name), "\n")
	text := first + "\n" + withRecords(body)
	return &script{text: text, hash: hashOf(text)}
}

// newChange makes a script that is bounded.
func newChange(name string) *script {
	first, body, _ := strings.Cut(source(name), "\n")
	text := first + "\n" + withRecords(source("bounded")+body+"end\nreturn {clock, change()}\n")
	return &script{text: text, hash: hashOf(text), bounded: true}
}

// hashOf returns the name by which the server knows a script.
func hashOf(text string) string {
	sum := sha1.Sum([]byte(text)) //nolint:gosec // the server says so
	return hex.EncodeToString(sum[:])
}

// paragraph is a part of prelude.lua, with the names of the functions that it defines.
type paragraph struct {
	text    string
	defines []string
}

// prelude returns the part of prelude.lua that every script begins with, and the others. It is read once: a program
// makes all scripts at its start.
var prelude = sync.OnceValues(func() (first string, others []paragraph) {
	defined := regexp.MustCompile(`(?m)^local function (\w+)\(`)
	all := strings.SplitAfter(source("prelude"), "\n\n")
	for _, text := range all[1:] {
		p := paragraph{text: text}
		for _, found := range defined.FindAllStringSubmatch(text, -1) {
			p.defines = append(p.defines, found[1])
		}
		others = append(others, p)
	}
	return all[0], others
})

// withRecords puts the paragraphs of prelude.lua that a script uses before it, and leaves out the others: a server
// creates all functions again whenever a script runs, which takes longer than most calls of a function.
func withRecords(body string) string {
	first, others := prelude()
	for _, p := range slices.Backward(others) { // none uses a later one
		if slices.ContainsFunc(p.defines, func(name string) bool { return uses(body, name) }) {
			body = p.text + body
		}
	}
	return first + body
}

// uses reports whether Lua code calls a function, and not another whose name ends alike.
func uses(code, function string) bool {
	for {
		before, after, found := strings.Cut(code, function+"(")
		if !found {
			return false
		}
		if before == "" || !isOfName(before[len(before)-1]) {
			return true
		}
		code = after
	}
}

// isOfName reports whether a character may be part of a name in Lua.
func isOfName(c byte) bool {
	return c == '_' || '0' <= c && c <= '9' || 'A' <= c && c <= 'Z' || 'a' <= c && c <= 'z'
}

func source(name string) string {
	b, err := sources.ReadFile("scripts/" + name + ".lua")
	if err != nil {
		panic(err) // it is compiled in
	}
	return string(b)
}

// The scripts. Each file documents its script's effect, arguments and answer.
var (
	ackScript               = newScript("ack")
	adoptScript             = newScript("adopt")
	advanceScript           = newChange("advance")
	amendScript             = newChange("amend")
	countAllScript          = newScript("countall")
	cancelScript            = newChange("cancel")
	claimScript             = newScript("claim")
	claimJobsScript         = newScript("claimjobs")
	clockScript             = newScript("clock")
	countLanesScript        = newScript("countlanes")
	deadLettersScript       = newScript("deadletters")
	discardScript           = newChange("discard")
	dropScript              = newChange("drop")
	exportJobsScript        = newScript("exportjobs")
	exportMembersScript     = newScript("exportmembers")
	exportOwnedScript       = newScript("exportowned")
	importJobScript         = newScript("importjob")
	importOccurrencesScript = newScript("importoccurrences")
	insertScript            = newChange("insert")
	jobsScript              = newScript("jobs")
	markScript              = newChange("mark")
	moveTenantsScript       = newScript("movetenants")
	occurrencesScript       = newScript("occurrences")
	pauseScript             = newChange("pause")
	putBackScript           = newScript("putback")
	putScript               = newChange("put")
	redriveScript           = newChange("redrive")
	resumeScript            = newChange("resume")
	sampleScript            = newScript("sample")
	settleScript            = newScript("settle")
	standaloneScript        = newScript("standalone")
	sweepScript             = newScript("sweep")
	sweepRecordsScript      = newScript("sweeprecords")
	triggerScript           = newChange("trigger")
	writeRecordsScript      = newChange("writerecords")

	metaScript     = source("meta")     // runs once, and on no shard
	dueLanesScript = source("duelanes") // changes nothing that callers see, so askAll sends it
)

// call is one run of a script on one shard.
type call struct {
	script *script
	shard  int
	args   []any
}

// reply is the answer to a call.
type reply struct {
	value any
	err   error
}

// run runs scripts, many at a time. Those on one shard usually run in order, but not if a server does not know a script
// and gets its text, or refuses one because of a wrong reading of its clock. So scripts whose order matters need
// separate calls of run. No script is sent again once it may have been carried out.
func (s *Store) run(ctx context.Context, calls []call) []reply {
	if len(calls) > 0 && calls[0].script.bounded {
		if _, limited := ctx.Deadline(); !limited {
			var cancel context.CancelFunc
			ctx, cancel = bound(ctx)
			defer cancel()
		}
	}
	replies := make([]reply, len(calls))
	for start := 0; start < len(calls); start += pipelined {
		end := min(start+pipelined, len(calls))
		s.runTogether(ctx, calls[start:end], replies[start:end])
	}
	for i := range replies {
		replies[i].err = mapError(replies[i].err)
	}
	return replies
}

// tries bounds how often a call is sent: a server may not know its script, or may have had its clock set.
const tries = 4

// runTogether runs calls at once. It repeats those that a server refused because it did not know the script, or as
// late.
func (s *Store) runTogether(ctx context.Context, calls []call, replies []reply) {
	going := make([]int, len(calls))
	for i := range going {
		going[i] = i
	}
	whole := false
	for attempt := 0; len(going) > 0 && attempt < tries; attempt++ {
		if over(ctx) {
			for _, i := range going {
				replies[i].err = undone(mapError(cmp.Or(ctx.Err(), context.DeadlineExceeded)))
			}
			return
		}
		going = s.ready(ctx, calls, replies, going)
		s.send(ctx, calls, replies, going, whole)
		var again []int
		for _, i := range going {
			switch c, r := &calls[i], &replies[i]; {
			case redis.HasErrorPrefix(r.err, "NOSCRIPT"):
				again, whole = append(again, i), true
			case c.script.bounded && s.readBounded(c, r):
				again = append(again, i)
			}
		}
		going = again
	}
}

// over reports whether a context's deadline has passed. It compares clocks, since the context's timer may not have
// fired yet after a stop of this process.
func over(ctx context.Context) bool {
	ends, limited := ctx.Deadline()
	return ctx.Err() != nil || limited && !time.Now().Before(ends)
}

// ready returns the calls that can be sent. A bounded call needs a recent reading of its server's clock; if that fails,
// ready sets the call's error.
func (s *Store) ready(ctx context.Context, calls []call, replies []reply, going []int) []int {
	var unknown []int
	for _, i := range going {
		if c := &calls[i]; c.script.bounded && !s.shard(c.shard).clock.fresh() && !slices.Contains(unknown, c.shard) {
			unknown = append(unknown, c.shard)
		}
	}
	failed := s.readClocks(ctx, unknown)
	if len(failed) == 0 {
		return going
	}
	return slices.DeleteFunc(going, func(i int) bool {
		err := failed[calls[i].shard]
		if err == nil || !calls[i].script.bounded {
			return false
		}
		replies[i].err = undone(err)
		return true
	})
}

// readBounded notes the server's time from the answer of a bounded script, and reports whether the server refused the
// script as late.
func (s *Store) readBounded(c *call, r *reply) (late bool) {
	clock := &s.shard(c.shard).clock
	if r.err == nil {
		answer := asList(r.value)
		clock.note(int64(answer.number(0)))
		r.value = answer.at(1)
		return false
	}
	if late = code(r.err) == lateCode; late {
		_, at, _ := strings.Cut(r.err.Error(), " ")
		clock.note(int64(list{at}.number(0)))
	}
	return late
}

// send sends some of the calls at once, by their scripts' hashes, or by their texts if whole. It waits for the answers
// up to answerWithin longer than the context's deadline, so that a call that has taken effect is less often reported as
// failed.
func (s *Store) send(ctx context.Context, calls []call, replies []reply, going []int, whole bool) {
	ends, limited := ctx.Deadline()
	ctx = context.WithoutCancel(ctx)
	if limited {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, ends.Add(answerWithin))
		defer cancel()
	}
	s.eachNode(ctx, len(going), func(k int) int { return calls[going[k]].shard }, func(part []int) {
		for n, k := range part {
			part[n] = going[k]
		}
		s.sendTogether(ctx, ends, calls, replies, part, whole)
	})
}

// eachNode groups n items by the node that has their shard, as far as the client knows, and calls f concurrently for
// each group. A pipeline to several nodes would return only when the last of them has answered, and not at all if one
// hangs.
func (s *Store) eachNode(ctx context.Context, n int, shard func(i int) int, f func(part []int)) {
	cluster, _ := s.client.(*redis.ClusterClient)
	parts := make(map[string][]int)
	for i := range n {
		node := ""
		if cluster != nil {
			key := s.shard(shard(i)).keys[0].(string)                      //nolint:errcheck // all keys are strings
			if master, err := cluster.MasterForKey(ctx, key); err == nil { // else the client looks again
				node = master.Options().Addr
			}
		}
		parts[node] = append(parts[node], i)
	}
	var group sync.WaitGroup
	for _, part := range parts {
		if len(parts) == 1 {
			f(part)
			return
		}
		group.Go(func() { f(part) })
	}
	group.Wait()
}

// sendTogether sends some of the calls by one pipeline. Bounded ones take effect before ends, or never.
func (s *Store) sendTogether(
	ctx context.Context, ends time.Time, calls []call, replies []reply, part []int, whole bool) {
	commands := make([]once, len(part))
	pipe := s.client.Pipeline()
	for k, i := range part {
		c := calls[i]
		of := s.shard(c.shard)
		keys := of.keys
		args := make([]any, 0, 4+len(keys)+len(c.args))
		if whole {
			args = append(args, "eval", c.script.text, len(keys))
		} else {
			args = append(args, "evalsha", c.script.hash, len(keys))
		}
		args = append(append(args, keys...), c.args...)
		if c.script.bounded {
			args = append(args, of.clock.at(ends))
		}
		commands[k] = once{redis.NewCmd(ctx, args...)}
		_ = pipe.Process(ctx, commands[k]) // it only queues
	}
	_, _ = pipe.Exec(ctx) // each command has its own error
	for k, i := range part {
		replies[i].value, replies[i].err = commands[k].Result()
	}
}

// once is a command that the client must not repeat by itself, since it can't know whether the first one was executed.
type once struct{ *redis.Cmd }

// NoRetry makes the client not repeat the command.
func (once) NoRetry() bool { return true }

// firstError returns the first error among replies. It is [store.ErrNotDone] only if they all are.
func firstError(replies []reply) (err error) {
	part := false
	for i := range replies {
		part = part || !errors.Is(replies[i].err, store.ErrNotDone)
		if err == nil {
			err = replies[i].err
		}
	}
	if part {
		return partly(err)
	}
	return err
}

// list reads an answer of several values.
func (r reply) list() (list, error) {
	if r.err != nil {
		return nil, r.err
	}
	return asList(r.value), nil
}

// number reads an answer of one number.
func (r reply) number() (int, error) {
	if r.err != nil {
		return 0, r.err
	}
	return list{r.value}.number(0), nil
}

// text reads an answer of one text.
func (r reply) text() (string, error) {
	if r.err != nil {
		return "", r.err
	}
	return list{r.value}.text(0), nil
}

// time reads the answer of clock.lua.
func (r reply) time() (time.Time, error) {
	l, err := r.list()
	if err != nil {
		return time.Time{}, err
	}
	if len(l) != 2 {
		return time.Time{}, fmt.Errorf("the server's time is %v", l)
	}
	return time.Unix(int64(l.number(0)), int64(l.number(1))*1000), nil
}

// list is several values of an answer. Values that are missing or of another kind read as zero.
type list []any

func asList(v any) list {
	l, _ := v.([]any)
	return l
}

func (l list) at(i int) any {
	if i < len(l) {
		return l[i]
	}
	return nil
}

func (l list) list(i int) list { return asList(l.at(i)) }

func (l list) text(i int) string {
	s, _ := l.at(i).(string)
	return s
}

func (l list) number(i int) int {
	switch v := l.at(i).(type) {
	case int64:
		return int(v)
	case string:
		n, _ := strconv.ParseInt(v, 10, 64)
		return int(n)
	}
	return 0
}

// millis reads a time; zero if there is none.
func (l list) millis(i int) time.Time { return fromMillis(int64(l.number(i))) }

// score reads a time that is a score: zero is one too.
func (l list) score(i int) time.Time { return time.UnixMilli(int64(l.number(i))).UTC() }
