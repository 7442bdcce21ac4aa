package docs

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/redistest"
)

// notInCI are the targets that pages name and .ci/run does not run, with the reason.
var notInCI = map[string]string{
	"bench":         "it takes 35 to 50 minutes, and writes pages",
	"bench-fleet":   "it takes 25 minutes, and writes a page",
	"bench-quick":   "it takes five minutes",
	"failover-long": "it takes half an hour",
}

var commands = flag.Bool("commands", false, "run the commands of the pages")

// TestShell: a block of shell names targets of the Makefile that .ci/run runs. The other commands run with -commands, since that
// compiles much: what stands in bench in a clone of this repository, all else in a module beside one. Long tests of a module are
// not run, but have to be there.
func TestShell(t *testing.T) {
	makefile, ci := read(t, "Makefile"), read(t, ".ci/run")
	for _, b := range blocks(t, "sh") {
		where := fmt.Sprintf("%s:%d", b.page.path, b.line)
		var lines []string
		for line := range strings.Lines(b.text) {
			command, _, _ := strings.Cut(line, " #")
			if command = strings.TrimSpace(command); command == "" {
				continue
			}
			if target, is := strings.CutPrefix(command, "make "); is {
				target, _, _ = strings.Cut(target, " ")
				if !strings.Contains(makefile, "\n"+target+": ##") {
					t.Errorf("%s: the Makefile has no target %s", where, target)
				} else if inCI := `(?m)^(tests|computes|either)=\((.* )?` + target + `( .*)?\)$`; notInCI[target] == "" &&
					!regexp.MustCompile(inCI).MatchString(ci) {
					t.Errorf("%s: .ci/run does not run make %s", where, target)
				}
				continue
			}
			lines = append(lines, command)
		}
		script := strings.Join(lines, "\n")
		module := path.Dir(b.page.path)
		switch {
		case script == "":
		case module == "test/torture" || module == "test/interop":
			for _, command := range lines {
				checkTestCommand(t, where, module, command)
			}
		case !*commands:
		case strings.HasPrefix(b.page.path, "bench/"):
			t.Run(where, func(t *testing.T) { runInClone(t, script) })
		default:
			t.Run(where, func(t *testing.T) { runBesideClone(t, script) })
		}
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, name))
	require.NoError(t, err)
	return string(text)
}

var (
	someFlag = regexp.MustCompile(` -(\w+)`)
	goFlags  = " race v timeout run "
)

// checkTestCommand is for a go test that takes too long: the module has all its flags. TestNamedTests looks for the tests.
func checkTestCommand(t *testing.T, where, module, command string) {
	t.Helper()
	var code strings.Builder
	walk(t, "_test.go", func(name, text string) {
		if strings.HasPrefix(name, module+"/") {
			code.WriteString(text)
		}
	})
	if !strings.HasPrefix(strings.TrimPrefix(command, "GOWORK=off "), "go test ") {
		t.Errorf("%s: %s is not a go test", where, command)
	}
	for _, match := range someFlag.FindAllStringSubmatch(command, -1) {
		if !strings.Contains(goFlags, " "+match[1]+" ") &&
			!regexp.MustCompile(`flag\.\w+\("`+match[1]+`"`).MatchString(code.String()) {
			t.Errorf("%s: %s has no flag %s", where, module, match[1])
		}
	}
}

// user is a program of somebody who uses this library.
const user = `package main

import "github.com/lockregistry/lockregistry"

func main() { println(lockregistry.ErrTaken.Error()) }
`

func runBesideClone(t *testing.T, commands string) {
	t.Helper()
	parent := t.TempDir()
	clone, err := filepath.Abs(root)
	require.NoError(t, err)
	require.NoError(t, os.Symlink(clone, filepath.Join(parent, "lockregistry")))
	service := filepath.Join(parent, "service")
	require.NoError(t, os.Mkdir(service, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(service, "main.go"), []byte(user), 0o600))
	script := "set -eu\ngo mod init example.com/service\n" + commands + "\ngo run .\n"
	run := exec.CommandContext(t.Context(), "sh", "-c", script)
	run.Dir = service
	run.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod")
	out, err := run.CombinedOutput()
	require.NoError(t, err, string(out))
}

// long is a number of turns that takes a benchmark longer than is needed to see that the command works.
var long = regexp.MustCompile(`-benchtime \d+x`)

func runInClone(t *testing.T, commands string) {
	t.Helper()
	t.Cleanup(func() { // git ignores both
		_ = os.Remove(filepath.Join(root, "cpu.out"))
		_ = os.Remove(filepath.Join(root, "lockregistry.test"))
	})
	script := "set -eu\n" + long.ReplaceAllString(commands, "-benchtime 1000x")
	run := exec.CommandContext(t.Context(), "sh", "-c", script)
	run.Dir = root
	out, err := run.CombinedOutput()
	require.NoError(t, err, string(out))
}

// TestConsole: a server takes each command that the pages have after redis-cli.
func TestConsole(t *testing.T) {
	server := redistest.Start(t)
	for _, b := range blocks(t, "console") {
		for line := range strings.Lines(b.text) {
			command, is := strings.CutPrefix(line, "$ redis-cli ")
			if !is {
				continue
			}
			args := redisCLI(command)
			if len(args) == 0 {
				continue
			}
			var refused redistest.ReplyError
			if _, err := server.Do(args...); errors.As(err, &refused) {
				t.Errorf("%s:%d: %v: %v", b.page.path, b.line, args, err)
			}
		}
	}
}

// redisCLI are the arguments of redis-cli that make up the command; none when it asks for something else.
func redisCLI(line string) (args []string) {
	for word := range strings.FieldsSeq(line) {
		args = append(args, strings.Trim(word, "'"))
	}
	if args[0] == "-n" {
		args = args[2:]
	}
	if args[0] == "--scan" {
		args = []string{"SCAN", "0", "MATCH", args[2]}
	}
	return args
}
