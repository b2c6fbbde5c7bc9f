package service

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"

	"golang.org/x/net/http/httpguts"
)

// release is the version that the linker sets if the build has no repository; see .ci/build.
var release string

// moduleVersion returns the version of the module.
func moduleVersion() string {
	v, _, _ := build()
	return v
}

// userAgent names the program to receivers. It has the version unless a header can't contain it, such as "(devel)".
func userAgent(version string) string {
	if !httpguts.ValidHeaderFieldName(version) { // which allows the same characters as a product's version
		return "carillon"
	}
	return "carillon/" + version
}

// Version returns a program's name and version: the module's version, or the commit of the build.
func Version(program string) string {
	v, revision, goVersion := build()
	if revision != "" {
		revision = " (" + revision + ")"
	}
	return fmt.Sprintf("%s %s%s, %s", program, v, revision, goVersion)
}

// build returns the version of the module or release, the commit of the build (empty if unknown), and the version of
// Go.
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
