package peer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// profile is the Maven profile with everything that is not built by default.
const profile = "old"

// mavenTries is how often Maven is tried: it downloads much.
const mavenTries = 3

// Modules of the Maven project, each with a program.
const (
	Spring71    = "spring-7.1"
	Spring65    = "spring-6.5"
	Spring62    = "spring-6.2"
	Spring55    = "spring-5.5"
	Redisson    = "redisson"
	Redisson352 = "redisson-3.52"
	Redisson327 = "redisson-3.27"
)

var modules = []string{Spring71, Spring65, Spring62, Spring55, Redisson, Redisson352, Redisson327}

// Java is the Maven project test/interop/jvm, in a folder.
type Java struct{ Dir string }

// Build runs Maven unless the programs are newer than their sources.
func (p Java) Build(ctx context.Context) error {
	newest, err := p.newestSource()
	if err != nil {
		return fmt.Errorf("cannot read the Java sources: %w", err)
	}
	if built, err := os.Stat(p.stamp()); err == nil && built.ModTime().After(newest) {
		return nil
	}
	// A jar of a version that is no longer asked for must not stay on the class path.
	for _, module := range append([]string{".", "peer"}, modules...) {
		if err := os.RemoveAll(filepath.Join(p.Dir, module, "target")); err != nil {
			return fmt.Errorf("cannot remove what was built before: %w", err)
		}
	}
	var output []byte
	for range mavenTries {
		maven := exec.CommandContext(ctx, "mvn", "-q", "-B", "-ntp", "-P"+profile, "package")
		maven.Dir = p.Dir
		output, err = maven.CombinedOutput()
		if err == nil || errors.Is(err, exec.ErrNotFound) {
			break
		}
	}
	if errors.Is(err, exec.ErrNotFound) {
		return fmt.Errorf("the Java peers need Maven and a JDK, 17 or newer "+
			"(Debian: apt-get install maven openjdk-17-jdk-headless): %w", err)
	}
	if err != nil {
		return fmt.Errorf("building the Java peers: %w\n%s", err, output)
	}
	if err := os.MkdirAll(filepath.Dir(p.stamp()), 0o750); err != nil {
		return fmt.Errorf("building the Java peers: %w", err)
	}
	return os.WriteFile(p.stamp(), nil, 0o600)
}

// stamp returns the path of an empty file, which was written when everything was last built.
func (p Java) stamp() string { return filepath.Join(p.Dir, "target", "built") }

func (p Java) newestSource() (newest time.Time, err error) {
	err = filepath.WalkDir(p.Dir, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && entry.Name() == "target":
			return filepath.SkipDir
		case entry.Name() == "pom.xml" || strings.HasSuffix(path, ".java"):
			info, err := entry.Info()
			if err != nil {
				return err
			}
			if info.ModTime().After(newest) {
				newest = info.ModTime()
			}
		}
		return nil
	})
	return newest, err
}

// Start starts the program of a module.
func (p Java) Start(name, module string) (*Peer, error) {
	java := "java"
	if home := os.Getenv("JAVA_HOME"); home != "" {
		java = filepath.Join(home, "bin", "java")
	}
	target := filepath.Join(p.Dir, module, "target")
	return Start(name, exec.Command(java, //nolint:gosec,noctx // Java as the developer has it; it ends when its input does
		// Quick to start, small, and fast enough for locks.
		"-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m",
		// Before JDK 18 the charset comes from the environment, and Spring reads the unlock message with it.
		"-Dfile.encoding=UTF-8",
		"-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
		"-cp", filepath.Join(target, "classes")+string(os.PathListSeparator)+filepath.Join(target, "lib", "*"),
		"lockregistry.peer.library.Main"))
}
