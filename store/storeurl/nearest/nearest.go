// Package nearest finds the known name that a mistyped one is most like, for messages that ask whether it is meant.
package nearest

import "strings"

// Name is the known name that is most like another one, whatever their case: at most two letters, and less than half of
// the name, have to be inserted, deleted or replaced to make it of the other. It is empty if there is none.
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

// distance is how many bytes have to be inserted, deleted or replaced to make one text of the other.
func distance(a, b string) int {
	row := make([]int, len(b)+1) // of the bytes of a so far, to each beginning of b
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
