package job

import (
	"crypto/sha256"
	"encoding/binary"
	"math/bits"
	"strings"
	"time"
)

// FiresAt returns the time at which an occurrence with these options is due at first: After its timestamp, moved by
// less than Spread, and never back. The move follows from the tenant, the key and the instant, so that it is the same
// on each replica, after each restart, and for each revision. The steps of a sequence keep their distances: all
// occurrences of one subscriber are moved by the same.
func (o *Options) FiresAt(of *Occurrence) time.Time {
	window := time.Duration(o.Spread) / time.Millisecond
	at := of.Timestamp.Add(time.Duration(o.After))
	if window == 0 {
		return at
	}
	text, instant := of.Name.Key, of.Timestamp.UnixMilli()
	if of.Part != nil {
		text, instant = text+"/"+of.Part.Subscriber, 0
	}
	moved, _ := bits.Mul64(fraction(of.Name.Tenant, text, instant), uint64(window)) //nolint:gosec // positive
	return at.Add(time.Duration(moved) * time.Millisecond)                          //nolint:gosec // it is less
}

// fraction returns an evenly distributed fraction of 2^64. The last number in the text moves it by the golden ratio,
// all else by a hash: keys that are numbered get fractions at nearly equal distances. By a hash alone, the fullest of
// 900 seconds would have twice as many of 10,000 as the others.
func fraction(tenant, text string, instant int64) uint64 {
	const digits, golden = "0123456789", 0x9E3779B97F4A7C15
	end := strings.LastIndexAny(text, digits) + 1
	begin := len(strings.TrimRight(text[:end], digits))
	var number uint64
	for _, digit := range []byte(text[begin:end]) {
		number = number*10 + uint64(digit-'0') // modulo 2^64, as the product below
	}
	return hashOf(tenant, text[:begin], text[end:], instant) + number*golden
}

// hashOf returns a hash of texts and a number that is the same in all versions of the program.
func hashOf(tenant, a, b string, n int64) uint64 {
	var scratch [512]byte
	all := scratch[:0]
	for _, text := range []string{tenant, a, b} {
		all = binary.AppendUvarint(all, uint64(len(text))) // so that different lists of texts have different bytes
		all = append(all, text...)
	}
	sum := sha256.Sum256(binary.BigEndian.AppendUint64(all, uint64(n))) //nolint:gosec // any bits will do
	return binary.BigEndian.Uint64(sum[:])
}
