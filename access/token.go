package access

import (
	"crypto/rand"
	"crypto/sha256"
	"hash/crc32"
	"strings"
)

// TokenPrefix is what every key's token begins with, so that scanners for leaked secrets can find it. Tokens of other
// kinds do not begin so.
const TokenPrefix = "carillon_"

// A token is carillon_ID_SECRETCHECKSUM, in the form of GitHub's tokens. All three parts are base 62 and have a fixed
// length. The checksum is the CRC-32 (IEEE) of everything before it: it proves nothing, but tells a token that was
// mistyped or cut off, and text that only looks like one, without a look-up.
const (
	base62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

	idLength       = 12 // 71 random bits: enough to be unique
	secretLength   = 30 // 178 random bits: more than can be tried
	checksumLength = 6  // 62^6 is more than 2^32

	tokenLength = len(TokenPrefix) + idLength + len("_") + secretLength + checksumLength
)

// newToken makes a token of a key with this id.
func newToken(id string) string {
	body := TokenPrefix + id + "_" + randomText(secretLength)
	sum := checksum([]byte(body))
	return body + string(sum[:])
}

func newID() string { return randomText(idLength) }

// ParseToken reads the id of the key that a token is of. It tells whether the text has the form of a token, with the
// right checksum; not whether there is such a key.
func ParseToken(token string) (id string, ok bool) {
	rest, ours := strings.CutPrefix(token, TokenPrefix)
	if !ours || len(token) != tokenLength || rest[idLength] != '_' {
		return "", false
	}
	id = rest[:idLength]
	if !isBase62(id) || !isBase62(rest[idLength+1:]) {
		return "", false
	}
	var text [tokenLength]byte
	copy(text[:], token)
	const body = tokenLength - checksumLength
	if checksum(text[:body]) != [checksumLength]byte(text[body:]) {
		return "", false
	}
	return id, true
}

// ValidKeyID tells whether a key can have this id.
func ValidKeyID(id string) bool { return len(id) == idLength && isBase62(id) }

// randomText is random base 62 digits of the operating system's source.
func randomText(length int) string {
	text := make([]byte, 0, length)
	var source [64]byte
	for {
		_, _ = rand.Read(source[:]) // it never fails
		for _, b := range source {
			if int(b) >= 256/len(base62)*len(base62) {
				continue // else the first digits were likelier than the others
			}
			if text = append(text, base62[int(b)%len(base62)]); len(text) == length {
				return string(text)
			}
		}
	}
}

// checksum is that of a token's other parts.
func checksum(body []byte) (digits [checksumLength]byte) {
	sum := crc32.ChecksumIEEE(body)
	for i := checksumLength - 1; i >= 0; i-- {
		digits[i] = base62[sum%uint32(len(base62))]
		sum /= uint32(len(base62))
	}
	return digits
}

func isBase62(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < '0' || '9' < c) && (c < 'A' || 'Z' < c) && (c < 'a' || 'z' < c) {
			return false
		}
	}
	return true
}

// tokenHash is what is kept of a token. A slow hash would protect passwords that people choose; nobody can guess 178
// random bits, however fast the hash is.
type tokenHash [sha256.Size]byte

func hashToken(token string) tokenHash {
	var text [tokenLength]byte
	return sha256.Sum256(text[:copy(text[:], token)])
}
