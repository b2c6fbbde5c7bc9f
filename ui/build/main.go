// Build bundles the web page with esbuild, from ui/src and the libraries in ui/node_modules, into the folder of its
// argument. The output depends only on these, so that it can be compared.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/evanw/esbuild/pkg/api"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: build UI-FOLDER OUTPUT-FOLDER")
		os.Exit(2)
	}
	if err := build(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// build writes the page's files.
func build(source, output string) error {
	source, err := filepath.Abs(source)
	if err != nil {
		return err
	}
	result := api.Build(api.BuildOptions{
		AbsWorkingDir:     source,
		EntryPoints:       []string{"src/app.tsx", "src/app.css"},
		Outdir:            output,
		Bundle:            true,
		Write:             true,
		MinifyWhitespace:  true,
		MinifyIdentifiers: true,
		MinifySyntax:      true,
		Charset:           api.CharsetUTF8,
		Format:            api.FormatESModule,
		Target:            api.ES2022,
		JSX:               api.JSXAutomatic,
		JSXImportSource:   "preact",
		LegalComments:     api.LegalCommentsEndOfFile,
		LogLevel:          api.LogLevelWarning,
	})
	if len(result.Errors) > 0 {
		return fmt.Errorf("%d errors", len(result.Errors))
	}
	for _, name := range []string{"index.html", "icon.svg"} {
		content, err := os.ReadFile(filepath.Join(source, "src", name))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(output, name), content, 0o644); err != nil {
			return err
		}
	}
	return nil
}
