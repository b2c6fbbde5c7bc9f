package access

import (
	"context"
	"time"

	"github.com/carillon-scheduler/carillon/store"
)

const (
	// noteAgain is how long a use that may not have been written waits before it is handed in again.
	noteAgain = time.Minute
	// mostUses wait to be written; others are handed in when their keys are used again.
	mostUses = 10_000
	// usesAtOnce are written by one call, which may take useTime.
	usesAtOnce = 100
	useTime    = 10 * time.Second
)

// use is that a key was used.
type use struct {
	key *cached
	at  time.Time
}

// noteUse has it written that a key was used, once an hour, by somebody else. Nothing waits for that.
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

// takeUses takes some uses that are to be written. With none, the one who asks is to end.
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

// writeSome writes uses, each on the condition that its key is as it was read: one that was revoked or rotated
// meanwhile stays so. What is not written is handed in again when the key is used.
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
		if err != nil { // it was read from the same form
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
