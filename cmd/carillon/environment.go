package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// ofOthers are variables that begin like ours and are not meant for the program: those of its tests, and those which
// Kubernetes sets for each service that is called carillon, or carillon-something.
var ofOthers = regexp.MustCompile(`^CARILLON_TEST_` +
	`|^CARILLON_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)=` +
	`|^CARILLON_(\w+_)?PORT=\w+://`)

// unknownVariables warns of variables in an environment that begin like those of the program's options and are none of
// them. It tells their names only: a value may be a secret. That they are there is no error: others may have set them.
func unknownVariables(program *kong.Node, environment []string) (warnings []string) {
	var known []string
	_ = kong.Visit(program, func(node kong.Visitable, next kong.Next) error { // nothing fails
		if flag, ok := node.(*kong.Flag); ok {
			for _, name := range flag.Envs {
				known = append(known, name, name+"_FILE")
			}
		}
		return next(nil)
	})
	for _, variable := range environment {
		name, _, _ := strings.Cut(variable, "=")
		if !strings.HasPrefix(name, "CARILLON_") || slices.Contains(known, name) || ofOthers.MatchString(variable) {
			continue
		}
		hint := `"carillon serve --help" names those of all options`
		if like := nearest(name, known); like != "" {
			hint = fmt.Sprintf("is it meant to be %s?", like)
		}
		warnings = append(warnings, name+" is the variable of no option, and ignored; "+hint)
	}
	slices.Sort(warnings)
	return warnings
}

// nearest is the name of which at most two letters differ; else the longest that the other goes on from, as
// CARILLON_STORE_URL does from CARILLON_STORE; empty if there is none.
func nearest(name string, names []string) (best string) {
	least := 3
	for _, n := range names {
		if d := distance(name, n); d < least {
			best, least = n, d
		}
	}
	if best != "" {
		return best
	}
	for _, n := range names {
		if strings.HasPrefix(name, n+"_") && len(n) > len(best) {
			best = n
		}
	}
	return best
}

// distance is how many letters have to be put in, left out or replaced to make one name of the other.
func distance(a, b string) int {
	row := make([]int, len(b)+1) // of the letters of a so far, to each beginning of b
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
