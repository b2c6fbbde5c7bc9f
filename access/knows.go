package access

import "time"

// Knows tells whether a token was lately found to be valid, without a look-up. It may not be valid any more.
func (k *Keys) Knows(token string, now time.Time) bool {
	id, ok := ParseToken(token)
	if !ok {
		return false
	}
	k.mutex.Lock()
	known, ok := k.cache.get(id, time.Now())
	k.mutex.Unlock()
	return ok && known.body.has(hashToken(token), now)
}
