package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/carillon-scheduler/carillon/cmd/internal/remote"
	"github.com/carillon-scheduler/carillon/store/storeurl/nearest"
)

// ofOthers matches variables with our prefix that are not for the program: those of its tests, and those that
// Kubernetes sets for each service called carillon or carillon-something.
var ofOthers = regexp.MustCompile(`^CARILLON_TEST_` +
	`|^CARILLON_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)=` +
	`|^CARILLON_(\w+_)?PORT=\w+://`)

// unknownVariables returns warnings about variables with the prefix of the program's options that belong to no option.
// A warning has only the name: the value may be a secret. It is no error, since others may have set the variables.
func unknownVariables(environment []string) (warnings []string) {
	p := program()
	var known []string // without the prefix
	for _, name := range p.Variables() {
		name = strings.TrimPrefix(name, p.Environment)
		known = append(known, name, name+"_FILE")
	}
	for _, name := range remote.Variables { // those of commands that ask a service
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
		hint := `"carillon serve --help" names the variables of all options`
		if like := likely(short, known); like != "" {
			hint = fmt.Sprintf("is it meant to be %s%s?", p.Environment, like)
		}
		warnings = append(warnings, name+" belongs to no option, and is ignored; "+hint)
	}
	slices.Sort(warnings)
	return warnings
}

// likely returns the known name that was probably meant: the nearest one; else the longest that is a prefix of the
// name, such as STORE of STORE_URL; "" if there is none.
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
