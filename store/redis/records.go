package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// recordKeys returns the keys of all records of the store, which are few and small, and of no shard:
//
//   - entries is a sorted set whose scores are all the same. A record is one entry: its collection, a NUL, its key, a
//     NUL, its version, a space, its expiry in Unix milliseconds (0 for never), a space and its body. So the records of
//     a collection sort by the bytes of their keys, and one command reads a page. The part before the second NUL is the
//     record's name.
//   - expiry has the names of records that expire, with their expiry as the score.
//   - The last key had the tenants in formats before 4. It is the hash tag of the others, so that a cluster has them on
//     the same node, and one script can move the tenants. Since 4 it never exists: so while a cluster is moving the
//     slot, every script lacks a key, and the server refuses it before it begins rather than half way.
func recordKeys(prefix string) []any {
	before := prefix + ":tenants"
	return []any{prefix + ":{" + before + "}:records", prefix + ":{" + before + "}:expiry", before}
}

// entries returns the key of the records.
func (s *Store) entries() string { return s.records.keys[0].(string) } //nolint:errcheck // they all are

// recordName returns a record's name: the beginning of its entry, without the second NUL.
func recordName(collection, key string) string { return collection + separator + key }

// Records implements [store.Records].
func (s *Store) Records(ctx context.Context, f store.RecordFilter) ([]store.Record, error) {
	if len(f.Keys) > 0 {
		return s.recordsByKey(ctx, f)
	}
	prefix := recordName(f.Collection, f.Prefix)
	from := "[" + prefix
	if after := recordName(f.Collection, f.After); f.After != "" && after >= prefix {
		from = "(" + after + "\x01" // no key has a control character in it
	}
	var page []store.Record
	for {
		limit := min(f.Limit, chunk)
		entries, err := s.client.ZRangeArgs(ctx, redis.ZRangeArgs{
			Key: s.entries(), ByLex: true, Start: from, Stop: "(" + prefix + "\xff", Count: int64(limit),
		}).Result()
		if err != nil {
			return nil, mapError(err)
		}
		if page, err = appendLive(page, entries, f); err != nil {
			return nil, err
		}
		if len(entries) < limit || len(page) >= f.Limit {
			return page[:min(f.Limit, len(page))], nil
		}
		from = "(" + entries[limit-1]
	}
}

// recordsByKey reads the records that a filter names.
func (s *Store) recordsByKey(ctx context.Context, f store.RecordFilter) (page []store.Record, err error) {
	for part := range slices.Chunk(f.Wanted(), chunk) {
		pipe := s.client.Pipeline()
		found := make([]*redis.StringSliceCmd, len(part))
		for i, key := range part {
			name := recordName(f.Collection, key)
			found[i] = pipe.ZRangeArgs(ctx, redis.ZRangeArgs{
				Key: s.entries(), ByLex: true, Start: "[" + name + separator, Stop: "(" + name + "\x01", Count: 1,
			})
		}
		if _, err := pipe.Exec(ctx); err != nil {
			return nil, mapError(err)
		}
		for _, entries := range found {
			if page, err = appendLive(page, entries.Val(), f); err != nil || len(page) == f.Limit {
				return page, err
			}
		}
	}
	return page, nil
}

// appendLive decodes entries of a filter's collection and adds those records that have not expired.
func appendLive(page []store.Record, entries []string, f store.RecordFilter) ([]store.Record, error) {
	for _, entry := range entries {
		key, rest, hasKey := strings.Cut(entry[len(f.Collection)+len(separator):], separator)
		version, rest, hasVersion := strings.Cut(rest, " ")
		expires, body, hasExpiry := strings.Cut(rest, " ")
		ms, err := strconv.ParseInt(expires, 10, 64)
		if err != nil || !hasKey || !hasVersion || !hasExpiry {
			return nil, fmt.Errorf("the stored record %.80q can't be understood", entry)
		}
		if r := (store.Record{
			Key: key, Version: job.Revision(version), Body: []byte(body), ExpiresAt: fromMillis(ms),
		}); r.ExpiresAt.IsZero() || r.ExpiresAt.After(f.Now) {
			page = append(page, r)
		}
	}
	return page, nil
}

// largestWrite bounds how many bytes of records one script writes: Redis serves no other command meanwhile.
const largestWrite = 1 << 20

// WriteRecords implements [store.Records]. The scripts are run one after the other, since keys may repeat.
func (s *Store) WriteRecords(ctx context.Context, changes []store.RecordChange) []error {
	if _, limited := ctx.Deadline(); !limited {
		var cancel context.CancelFunc
		ctx, cancel = bound(ctx)
		defer cancel()
	}
	answers := make([]error, len(changes))
	var args []any
	var going []int
	size := 0
	flush := func() {
		if len(going) == 0 {
			return
		}
		made, err := s.run(ctx, []call{{writeRecordsScript, noShard, args}})[0].list()
		for i, of := range going {
			switch {
			case err != nil:
				answers[of] = err
			case made.number(i) == 0:
				answers[of] = store.ErrPrecondition
			}
		}
		args, going, size = nil, nil, 0
	}
	for i := range changes {
		c := &changes[i]
		if answers[i] = c.Check(); answers[i] != nil {
			continue
		}
		args, going, size = append(args, recordArgs(c)...), append(going, i), size+len(c.Body)
		if len(going) == chunk || size >= largestWrite {
			flush()
		}
	}
	flush()
	return answers
}

// recordArgs returns the arguments of writerecords.lua for a change.
func recordArgs(c *store.RecordChange) []any {
	body, condition := "", ""
	if c.Body != nil {
		body = "=" + string(c.Body)
	}
	switch {
	case c.If.Absent:
		condition = "-"
	case c.If.Version != "":
		condition = "=" + string(c.If.Version)
	}
	name := recordName(c.Collection, c.Key)
	return []any{name, string(c.Version), body, millis(c.ExpiresAt), condition, c.Now.UnixMilli()}
}

// moveTenants turns the tenants and replicas of formats before 4 into records. It runs whenever a store is opened,
// since an earlier run may have been interrupted.
func (s *Store) moveTenants(ctx context.Context) error {
	for left := chunk; left == chunk; {
		var err error
		if left, err = s.run(ctx, []call{{moveTenantsScript, noShard, []any{chunk}}})[0].number(); err != nil {
			return err
		}
	}
	replicas := s.prefix + ":replicas"
	beats, err := s.client.ZRangeWithScores(ctx, replicas, 0, -1).Result()
	if err != nil {
		return mapError(err)
	}
	now := time.Now()
	var changes []store.RecordChange
	for _, beat := range beats {
		changes = append(changes, store.RecordChange{
			Collection: "replicas", Key: fmt.Sprint(beat.Member), Version: job.NewRevision(now), Body: []byte{},
			ExpiresAt: scoreTime(beat.Score), If: store.RecordCondition{Absent: true}, Now: now,
		})
	}
	for _, err := range s.WriteRecords(ctx, changes) {
		if err != nil && !errors.Is(err, store.ErrPrecondition) {
			return err
		}
	}
	for _, key := range []string{replicas, s.prefix + ":tenants-set"} {
		if err := s.client.Unlink(ctx, key).Err(); err != nil {
			return mapError(err)
		}
	}
	return nil
}
