package redis

import (
	"context"
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

//go:embed scripts/*.lua
var sources embed.FS

// script is a Lua script. Servers know it by the hash of its text once they have run it.
type script struct{ text, hash string }

// newScript reads the script of a file and puts what records.lua has after its first line. That line says whether the server
// may run it although its memory is used up: what ends something may, so that a full store still empties.
func newScript(name string) *script {
	first, rest, _ := strings.Cut(source(name), "\n")
	text := first + "\n" + source("records") + rest
	sum := sha1.Sum([]byte(text))
	return &script{text: text, hash: hex.EncodeToString(sum[:])}
}

func source(name string) string {
	b, err := sources.ReadFile("scripts/" + name + ".lua")
	if err != nil {
		panic(err) // it is compiled in
	}
	return string(b)
}

// The scripts. Each one's file says what it does, takes and answers.
var (
	ackScript               = newScript("ack")
	adoptScript             = newScript("adopt")
	advanceScript           = newScript("advance")
	amendScript             = newScript("amend")
	backlogScript           = newScript("backlog")
	cancelScript            = newScript("cancel")
	claimScript             = newScript("claim")
	claimJobsScript         = newScript("claimjobs")
	clockScript             = newScript("clock")
	countLanesScript        = newScript("countlanes")
	deadLettersScript       = newScript("deadletters")
	discardScript           = newScript("discard")
	dropScript              = newScript("drop")
	exportJobsScript        = newScript("exportjobs")
	exportMembersScript     = newScript("exportmembers")
	exportOwnedScript       = newScript("exportowned")
	importJobScript         = newScript("importjob")
	importOccurrencesScript = newScript("importoccurrences")
	insertScript            = newScript("insert")
	jobScript               = newScript("job")
	jobsScript              = newScript("jobs")
	occurrencesScript       = newScript("occurrences")
	pauseScript             = newScript("pause")
	putBackScript           = newScript("putback")
	putScript               = newScript("put")
	redriveScript           = newScript("redrive")
	resumeScript            = newScript("resume")
	sampleScript            = newScript("sample")
	settleScript            = newScript("settle")
	straysScript            = newScript("strays")
	sweepScript             = newScript("sweep")
	triggerScript           = newScript("trigger")

	metaScript     = source("meta")     // it is run once, and on no shard
	beatScript     = source("beat")     // on no shard either
	dueLanesScript = source("duelanes") // it is asked for like what is due, see heads
	upgradeScript  = source("upgrade")

	meetTenantsScript = source("meettenants") // neither are these
	setTenantScript   = source("settenant")
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

// run runs scripts, in order if they are on one shard, many at a time. A server that does not know a script gets its text:
// then the order is not kept, so those whose order matters must be run one after the other. Each is sent once.
func (s *Store) run(ctx context.Context, calls []call) []reply {
	replies := make([]reply, len(calls))
	for start := 0; start < len(calls); start += pipelined {
		end := min(start+pipelined, len(calls))
		if err := ctx.Err(); err != nil {
			for i := start; i < len(calls); i++ {
				replies[i].err = err
			}
			break
		}
		s.send(ctx, calls[start:end], replies[start:end], false)
		var unknown []int
		for i := start; i < end; i++ {
			if redis.HasErrorPrefix(replies[i].err, "NOSCRIPT") {
				unknown = append(unknown, i)
			}
		}
		if len(unknown) == 0 {
			continue
		}
		again, answers := make([]call, len(unknown)), make([]reply, len(unknown))
		for k, i := range unknown {
			again[k] = calls[i]
		}
		s.send(ctx, again, answers, true)
		for k, i := range unknown {
			replies[i] = answers[k]
		}
	}
	for i := range replies {
		replies[i].err = mapError(replies[i].err)
	}
	return replies
}

// send sends calls at once, by their scripts' hashes or texts. If the context ends after that, it waits a little longer for
// the answers: whoever is told that something failed should not see it happen.
func (s *Store) send(ctx context.Context, calls []call, replies []reply, whole bool) {
	ends, limited := ctx.Deadline()
	ctx = context.WithoutCancel(ctx)
	if limited {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, ends.Add(answerWithin))
		defer cancel()
	}
	s.eachNode(ctx, len(calls), func(i int) int { return calls[i].shard }, func(part []int) {
		s.sendTogether(ctx, calls, replies, part, whole)
	})
}

// eachNode divides n things that concern a shard each by the nodes that are thought to have those, and calls f for each part,
// at the same time. A pipeline to several nodes answers nothing before the last of them has answered, and nothing at all if
// that one hangs.
func (s *Store) eachNode(ctx context.Context, n int, shard func(i int) int, f func(part []int)) {
	cluster, _ := s.client.(*redis.ClusterClient)
	parts := make(map[string][]int)
	for i := range n {
		node := ""
		if cluster != nil {
			// What is not known is for the client to find out again.
			if master, err := cluster.MasterForKey(ctx, s.shards[shard(i)].keys[0].(string)); err == nil { //nolint:errcheck // they all are
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

// sendTogether sends some of the calls by one pipeline.
func (s *Store) sendTogether(ctx context.Context, calls []call, replies []reply, part []int, whole bool) {
	commands := make([]once, len(part))
	pipe := s.client.Pipeline()
	for k, i := range part {
		c := calls[i]
		keys := s.shards[c.shard].keys
		args := make([]any, 0, 3+len(keys)+len(c.args))
		if whole {
			args = append(args, "eval", c.script.text, len(keys))
		} else {
			args = append(args, "evalsha", c.script.hash, len(keys))
		}
		args = append(append(args, keys...), c.args...)
		commands[k] = once{redis.NewCmd(ctx, args...)}
		_ = pipe.Process(ctx, commands[k]) // it only queues
	}
	_, _ = pipe.Exec(ctx) // each command has its own error
	for k, i := range part {
		replies[i].value, replies[i].err = commands[k].Result()
	}
}

// once is a command that the client must not send again by itself: it can't know whether the first was carried out.
type once struct{ *redis.Cmd }

// NoRetry tells the client so.
func (once) NoRetry() bool { return true }

// firstError is the first error among replies.
func firstError(replies []reply) error {
	for i := range replies {
		if replies[i].err != nil {
			return replies[i].err
		}
	}
	return nil
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
