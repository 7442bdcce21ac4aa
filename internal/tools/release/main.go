// Command release writes a version of the library, as it stands in a commit, as a module proxy has it:
//
//	release REPOSITORY VERSION DIRECTORY
//
// With it the modules of the repository that need the library can be tidied before anybody can download that version.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

const library = "github.com/lockregistry/lockregistry"

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: release REPOSITORY VERSION DIRECTORY")
		os.Exit(2)
	}
	if err := write(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func write(repository, version, directory string) error {
	to := filepath.Join(directory, filepath.FromSlash(library), "@v")
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	mod, err := os.ReadFile(filepath.Join(repository, "go.mod"))
	if err != nil {
		return err
	}
	files := map[string]string{
		"list":            version + "\n",
		version + ".info": fmt.Sprintf("{%q: %q}", "Version", version),
		version + ".mod":  string(mod),
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(to, name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	archive, err := os.Create(filepath.Join(to, version+".zip"))
	if err != nil {
		return err
	}
	defer archive.Close() //nolint:errcheck // see below
	if err := zip.CreateFromVCS(archive, module.Version{Path: library, Version: version}, repository, version, ""); err != nil {
		return err
	}
	return archive.Close()
}
