package access

import "time"

// Knows implements [Authenticator]. It returns true for a token that was valid when it was last looked up.
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
