// Package nearest finds the known name that is most similar to a mistyped one, for messages that suggest it.
package nearest

import "strings"

// Name returns the known name that is most similar to another name, ignoring case. At most two letters, and less than
// half of the name, have to be inserted, deleted or replaced. It is empty if there is no such name.
func Name(name string, known []string) (best string) {
	name = strings.ToLower(strings.TrimSpace(name))
	least := min(2, (len(name)-1)/2) + 1
	for _, k := range known {
		if d := distance(name, strings.ToLower(k)); d < least {
			best, least = k, d
		}
	}
	return best
}

// distance returns how many bytes have to be inserted, deleted or replaced to turn one text into the other.
func distance(a, b string) int {
	row := make([]int, len(b)+1) // distances from the bytes of a so far to each prefix of b
	for i := range row {
		row[i] = i
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for k := range len(b) {
			replaced := diagonal
			if a[i] != b[k] {
				replaced++
			}
			diagonal = row[k+1]
			row[k+1] = min(replaced, diagonal+1, row[k]+1)
		}
	}
	return row[len(b)]
}
