package service

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"

	"golang.org/x/net/http/httpguts"
)

// release is the version that the linker was told, where there was no repository to look at; see .ci/build.
var release string

// moduleVersion is that of the module alone.
func moduleVersion() string {
	v, _, _ := build()
	return v
}

// userAgent names the program to receivers, with its version unless a header can't carry that, such as "(devel)".
func userAgent(version string) string {
	if !httpguts.ValidHeaderFieldName(version) { // which is of the same characters as a product's version
		return "carillon"
	}
	return "carillon/" + version
}

// Version tells a program's name and its version: that of the module, or of the commit that was built.
func Version(program string) string {
	v, revision, goVersion := build()
	if revision != "" {
		revision = " (" + revision + ")"
	}
	return fmt.Sprintf("%s %s%s, %s", program, v, revision, goVersion)
}

// build tells the module's version, or the release that it was built as, the commit that was built (empty if that is
// not known), and the version of Go.
func build() (version, revision, goVersion string) {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return cmp.Or(release, "unknown"), "", runtime.Version()
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			revision = s.Value
		}
	}
	return cmp.Or(release, info.Main.Version), revision, info.GoVersion
}
