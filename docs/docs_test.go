// Package docs_test checks that everything exists that the documentation names.
package docs_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const root = ".."

// architecture is the text of ARCHITECTURE.md.
func architecture(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "ARCHITECTURE.md"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// files lists the repository's files with one of the suffixes, relative to its root. It leaves out hidden folders and
// those of installed packages.
func files(t *testing.T, suffixes ...string) (paths []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "node_modules"):
			return filepath.SkipDir
		case d.IsDir() || !slices.ContainsFunc(suffixes, func(s string) bool { return strings.HasSuffix(path, s) }):
			return nil
		}
		relative, err := filepath.Rel(root, path)
		paths = append(paths, filepath.ToSlash(relative))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

var (
	quoted     = regexp.MustCompile("`([^`\n]+)`")
	block      = regexp.MustCompile("(?s)```.*?```")
	path       = regexp.MustCompile(`^[\w.-]*(/[\w.-]+)+$|^[\w.-]+\.(go|md|yml|yaml)$`)
	testName   = regexp.MustCompile(`^(Test|Fuzz|Example|Benchmark)[A-Z]\w*$`)
	suiteCase  = regexp.MustCompile(`^"[^"]+"$`)
	identifier = regexp.MustCompile(`^([a-z]+)\.([A-Z]\w*)(?:\.([A-Z]\w*))?$`)
)

// TestArchitectureNamesWhatExists looks up everything in backquotes in ARCHITECTURE.md: files, tests, cases of the
// suites and exported identifiers. A name that contains NAME is a placeholder.
func TestArchitectureNamesWhatExists(t *testing.T) {
	sources := make(map[string]string) // by path
	for _, p := range files(t, ".go") {
		sources[p] = read(t, p)
	}
	// contained reports whether a chosen source contains a text; exists, whether it has a match.
	contained := func(chosen func(path string) bool, part string) bool {
		for p, text := range sources {
			if chosen(p) && strings.Contains(text, part) {
				return true
			}
		}
		return false
	}
	exists := func(chosen func(path string) bool, pattern string) bool {
		found := regexp.MustCompile(pattern)
		for p, text := range sources {
			if chosen(p) && found.MatchString(text) {
				return true
			}
		}
		return false
	}
	isTest := func(p string) bool { return strings.HasSuffix(p, "_test.go") }
	isSuite := func(p string) bool {
		return strings.HasPrefix(p, "store/storetest/") || strings.HasPrefix(p, "history/historytest/") ||
			strings.HasPrefix(p, "callbacks/callbackstest/")
	}
	looked := make(map[string]int)
	for _, m := range quoted.FindAllStringSubmatch(block.ReplaceAllString(architecture(t), ""), -1) {
		name, kind, found := m[1], "", true
		switch i := identifier.FindStringSubmatch(name); {
		case strings.Contains(name, "NAME"):
			continue
		case testName.MatchString(name):
			kind, found = "test", contained(isTest, "\nfunc "+name+"(")
		case suiteCase.MatchString(name):
			kind, found = "case of a suite", contained(isSuite, "{"+name+",")
		case path.MatchString(name):
			_, err := os.Stat(filepath.Join(root, name))
			kind, found = "file", err == nil
		case i != nil:
			inPackage := func(p string) bool { return filepath.Base(filepath.Dir(p)) == i[1] && !isTest(p) }
			kind, found = "identifier", exists(inPackage, `(?m)^(func|type|var|const|\t)\s*`+i[2]+`\b`)
			if i[3] != "" {
				found = found && exists(inPackage, `(?m)^(\t|func \([^)]*\) )`+i[3]+`\b`)
			}
		}
		looked[kind]++
		if !found {
			t.Errorf("ARCHITECTURE.md names the %s %s, which does not exist", kind, name)
		}
	}
	for _, kind := range []string{"file", "test", "case of a suite", "identifier"} {
		if looked[kind] == 0 {
			t.Errorf("no %s was found in ARCHITECTURE.md: does this test still read it?", kind)
		}
	}
}

// TestArchitectureIsWholeAndShort checks that ARCHITECTURE.md has a line for each package of the program, and can be
// read in one sitting.
func TestArchitectureIsWholeAndShort(t *testing.T) {
	text := architecture(t)
	if n := strings.Count(text, "\n"); n > 300 {
		t.Errorf("ARCHITECTURE.md has %d lines, at most 300 are wanted", n)
	}
	var modules []string // of their own
	for _, p := range files(t, "go.mod") {
		if dir := strings.TrimSuffix(p, "go.mod"); dir != "" {
			modules = append(modules, dir)
		}
	}
	seen := make(map[string]bool)
	for _, p := range files(t, ".go") {
		dir := filepath.ToSlash(filepath.Dir(p))
		apart := slices.ContainsFunc(modules, func(m string) bool { return strings.HasPrefix(p, m) })
		if apart || seen[dir] || strings.HasSuffix(p, "_test.go") || strings.HasPrefix(p, "docs/") {
			continue
		}
		seen[dir] = true
		if !strings.Contains(text, "`"+dir+"`") {
			t.Errorf("ARCHITECTURE.md does not name the package %s", dir)
		}
	}
	if !seen["job"] || !seen["store"] {
		t.Errorf("packages found: %v", seen)
	}
}

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#{1,6} +(.*)$`)
	anchor  = regexp.MustCompile(`<a id="([^"]+)">`)
	markup  = regexp.MustCompile(`[^\p{L}\p{N}\- _]`)
)

// anchors returns the anchors of a page's headings, by the rules of GitHub.
func anchors(text string) map[string]bool {
	all := make(map[string]bool)
	for _, m := range anchor.FindAllStringSubmatch(text, -1) {
		all[m[1]] = true
	}
	for _, m := range heading.FindAllStringSubmatch(block.ReplaceAllString(text, ""), -1) {
		name := strings.ReplaceAll(markup.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-")
		all[name] = true
	}
	return all
}

// TestPagesNameFilesThatExist looks up each path in backquotes, on any page, that begins with one of our folders.
func TestPagesNameFilesThatExist(t *testing.T) {
	ours := regexp.MustCompile(`^(\.ci|access|audit|callbacks|cmd|dispatcher|docker|docs|handlers|history|intake|job|openapi|secrets|store)/[\w./-]+$`)
	looked := 0
	for _, p := range files(t, ".md") {
		for _, m := range quoted.FindAllStringSubmatch(block.ReplaceAllString(read(t, p), ""), -1) {
			if name := m[1]; ours.MatchString(name) && !strings.Contains(name, "NAME") {
				looked++
				if _, err := os.Stat(filepath.Join(root, name)); err != nil {
					t.Errorf("%s names %s, which does not exist", p, name)
				}
			}
		}
	}
	if looked == 0 {
		t.Error("no path was found")
	}
}

// TestLinks follows each link from one page of the repository to another, and to its heading.
func TestLinks(t *testing.T) {
	followed := 0
	for _, p := range files(t, ".md") {
		for _, m := range link.FindAllStringSubmatch(block.ReplaceAllString(read(t, p), ""), -1) {
			if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
				continue
			}
			target, fragment, _ := strings.Cut(m[1], "#")
			to := p
			if target != "" {
				to = filepath.Join(filepath.Dir(p), target)
			}
			followed++
			if _, err := os.Stat(filepath.Join(root, to)); err != nil {
				t.Errorf("%s links to %s, which does not exist", p, m[1])
				continue
			}
			if fragment != "" && strings.HasSuffix(to, ".md") && !anchors(read(t, to))[fragment] {
				t.Errorf("%s links to %s, where there is no such heading", p, m[1])
			}
		}
	}
	if followed == 0 {
		t.Error("no link was found")
	}
}

// TestThreatsNameTestsThatExist looks up the tests in docs/security.md: each row of the threats names a folder, and
// tests that are there.
func TestThreatsNameTestsThatExist(t *testing.T) {
	sources := make(map[string]string) // tests by folder
	for _, p := range files(t, "_test.go") {
		sources[filepath.ToSlash(filepath.Dir(p))] += read(t, p)
	}
	rows := 0
	for line := range strings.Lines(read(t, "docs/security.md")) {
		cells := strings.Split(strings.TrimSpace(line), " | ")
		if len(cells) != 3 || !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| attacker could") {
			continue
		}
		rows++
		folder, named := "", 0
		for _, m := range quoted.FindAllStringSubmatch(cells[2], -1) {
			if !testName.MatchString(m[1]) {
				folder = m[1]
				continue
			}
			named++
			if !strings.Contains(sources[folder], "\nfunc "+m[1]+"(") {
				t.Errorf("%s: there is no %s in %s", cells[0], m[1], folder)
			}
		}
		if named == 0 {
			t.Errorf("%s: no test is named", cells[0])
		}
	}
	if rows < 30 {
		t.Errorf("%d threats were found: does this test still read them?", rows)
	}
}

// words are words that comments do without: a noun is plainer than a clause with "what". mostOfWords has the folders
// that are not clean yet, with their present numbers of such words. The numbers may only fall, and the aim is an empty
// table.
var (
	words       = regexp.MustCompile(`(?i)\b(what|anew|lest|whoever|in vain|(goes|gone) on with)\b`)
	mostOfWords = map[string]int{"sim": 1}
)

// TestWordsOfComments counts these words in the comments of Go files other than tests.
func TestWordsOfComments(t *testing.T) {
	found := make(map[string][]string) // by folder
	for _, p := range files(t, ".go") {
		if strings.HasSuffix(p, "_test.go") {
			continue
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, filepath.Join(root, p), nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		parts := strings.Split(p, "/")
		folder := parts[0]
		if folder == "cmd" {
			folder += "/" + parts[1]
		}
		for _, group := range file.Comments {
			for _, word := range words.FindAllString(strings.Join(strings.Fields(group.Text()), " "), -1) {
				found[folder] = append(found[folder], set.Position(group.Pos()).String()+": "+word)
			}
		}
	}
	for folder, all := range found {
		if most := mostOfWords[folder]; len(all) > most {
			t.Errorf("comments in %s have %d such words; %d may stay:\n%s", folder, len(all), most, strings.Join(all, "\n"))
		}
	}
}
