package access

import (
	"context"
	"time"

	"github.com/carillon-scheduler/carillon/store"
)

const (
	// noteAgain is the time after which a use that may not have been written is queued again.
	noteAgain = time.Minute
	// mostUses bounds the queue of uses to write. A use beyond it is queued when its key is used again.
	mostUses = 10_000
	// usesAtOnce is the number of uses that one call writes, and useTime its time limit.
	usesAtOnce = 100
	useTime    = 10 * time.Second
)

// use is a use of a key.
type use struct {
	key *cached
	at  time.Time
}

// noteUse queues the use of a key to be written, once an hour, by another goroutine. It does not wait for that.
func (k *Keys) noteUse(c *cached, asked, now time.Time) {
	if !c.key.LastUsed.Before(now.Truncate(time.Hour)) {
		return
	}
	k.mutex.Lock()
	defer k.mutex.Unlock()
	if asked.Sub(c.noted) < noteAgain || len(k.uses) == mostUses || k.ctx.Err() != nil {
		return
	}
	c.noted = asked
	k.uses[c.key.ID] = use{c, now}
	if !k.writing {
		k.writing = true
		k.running.Go(k.writeUses)
	}
}

// writeUses writes uses until there are none.
func (k *Keys) writeUses() {
	for {
		uses := k.takeUses()
		if len(uses) == 0 {
			return
		}
		k.writeSome(uses)
	}
}

// takeUses takes some queued uses. If there are none, the writer must end.
func (k *Keys) takeUses() (uses []use) {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	for id, u := range k.uses {
		if len(uses) == usesAtOnce {
			break
		}
		uses = append(uses, u)
		delete(k.uses, id)
	}
	k.writing = len(uses) > 0
	return uses
}

// writeSome writes uses, each on the condition that its key is unchanged since it was read, so that a revocation or
// rotation meanwhile is not undone. A use that is not written is queued again when the key is used.
func (k *Keys) writeSome(uses []use) {
	ctx, cancel := context.WithTimeout(k.ctx, useTime)
	defer cancel()
	var after []*cached
	var changes []store.RecordChange
	for _, u := range uses {
		used := &cached{stored: u.key.stored, read: u.key.read}
		used.key.LastUsed = u.at.UTC().Truncate(time.Hour)
		used.body.LastUsed = toMilli(used.key.LastUsed)
		change, err := used.body.change(used.key.ID, u.at, store.RecordCondition{Version: used.version})
		if err != nil { // can't happen: it was decoded from this form
			continue
		}
		used.version = change.Version
		after, changes = append(after, used), append(changes, change)
	}
	errs := k.records.WriteRecords(ctx, changes)
	k.mutex.Lock()
	defer k.mutex.Unlock()
	for i, used := range after {
		c, ok := k.cache.get(used.key.ID, used.read)
		if errs[i] == nil && ok && c.version == changes[i].If.Version {
			used.read, used.failed, used.noted = c.read, c.failed, c.noted
			k.cache.put(used.key.ID, used, used.read)
		}
	}
}
