package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/carillon-scheduler/carillon/store/storeurl/nearest"
)

// ofOthers are variables that begin like ours and are not meant for the program: those of its tests, and those which
// Kubernetes sets for each service that is called carillon, or carillon-something.
var ofOthers = regexp.MustCompile(`^CARILLON_TEST_` +
	`|^CARILLON_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)=` +
	`|^CARILLON_(\w+_)?PORT=\w+://`)

// unknownVariables warns of variables in an environment that begin like those of the program's options and are none of
// them. It tells their names only: a value may be a secret. That they are there is no error: others may have set them.
func unknownVariables(environment []string) (warnings []string) {
	p := program()
	var known []string // without the prefix
	for _, name := range p.Variables() {
		name = strings.TrimPrefix(name, p.Environment)
		known = append(known, name, name+"_FILE")
	}
	slices.Sort(known)
	for _, variable := range environment {
		name, _, _ := strings.Cut(variable, "=")
		short, ours := strings.CutPrefix(name, p.Environment)
		if !ours || slices.Contains(known, short) || ofOthers.MatchString(variable) {
			continue
		}
		hint := `"carillon serve --help" names those of all options`
		if like := likely(short, known); like != "" {
			hint = fmt.Sprintf("is it meant to be %s%s?", p.Environment, like)
		}
		warnings = append(warnings, name+" is the variable of no option, and ignored; "+hint)
	}
	slices.Sort(warnings)
	return warnings
}

// likely is the known name that was probably meant: the nearest one; else the longest that the name goes on from, as
// STORE_URL does from STORE; empty if there is none.
func likely(name string, known []string) string {
	best := nearest.Name(name, known)
	if best != "" {
		return best
	}
	for _, k := range known {
		if strings.HasPrefix(name, k+"_") && len(k) > len(best) {
			best = k
		}
	}
	return best
}
