package access

import (
	"crypto/rand"
	"crypto/sha256"
	"hash/crc32"
	"regexp"
	"strings"
)

// TokenPrefix is the beginning of every key's token, so that scanners for leaked secrets can find it. No other kind of
// token begins with it.
const TokenPrefix = "carillon_"

// A token is carillon_ID_SECRETCHECKSUM, in the form of GitHub's tokens. All three parts are base 62 and have a fixed
// length. The checksum is the CRC-32 (IEEE) of everything before it: it proves nothing, but shows without a look-up
// that a token was mistyped or cut off, or that a text only looks like a token.
const (
	base62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

	idLength       = 12 // 71 random bits: enough to be unique
	secretLength   = 30 // 178 random bits: too many to guess
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

// ParseToken returns the id of a token's key. It reports whether the text has the form of a token and the right
// checksum, not whether the key exists.
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

// The tokens that are masked: those of keys, also incomplete ones, whose secrets could be completed; and those of
// issuers (JWTs), whose first part is a JSON object in base64.
var (
	ours   = regexp.MustCompile(`(` + TokenPrefix + `[0-9A-Za-z]{12}_)[0-9A-Za-z]{20}[0-9A-Za-z_]*`)
	theirs = regexp.MustCompile(`eyJ[0-9A-Za-z_-]{8,}\.[0-9A-Za-z_-]+[0-9A-Za-z_.-]*`)
)

// MaskTokens replaces the secret of each token in a text by asterisks, for logs and other records. The id of a key
// stays, so that it can be revoked.
func MaskTokens(text string) string {
	if strings.Contains(text, TokenPrefix) {
		text = ours.ReplaceAllString(text, "$1***")
	}
	if strings.Contains(text, "eyJ") {
		text = theirs.ReplaceAllLiteralString(text, "eyJ***")
	}
	return text
}

// ValidKeyID reports whether a text has the form of a key's id.
func ValidKeyID(id string) bool { return len(id) == idLength && isBase62(id) }

// randomText returns random base 62 digits from the operating system's source.
func randomText(length int) string {
	text := make([]byte, 0, length)
	var source [64]byte
	for {
		_, _ = rand.Read(source[:]) // it never fails
		for _, b := range source {
			if int(b) >= 256/len(base62)*len(base62) {
				continue // else the first digits would be more likely than the others
			}
			if text = append(text, base62[int(b)%len(base62)]); len(text) == length {
				return string(text)
			}
		}
	}
}

// checksum returns the checksum of a token's other parts.
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

// tokenHash is the stored form of a token. Passwords chosen by people would need a slow hash; 178 random bits can't be
// guessed, even with a fast one.
type tokenHash [sha256.Size]byte

func hashToken(token string) tokenHash {
	var text [tokenLength]byte
	return sha256.Sum256(text[:copy(text[:], token)])
}
