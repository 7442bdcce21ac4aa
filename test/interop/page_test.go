package interop

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/peer"
)

// springClasses are the classes whose methods a team that comes from Spring may have called.
var springClasses = []string{
	"org.springframework.integration.redis.util.RedisLockRegistry",
	"org.springframework.integration.support.locks.DistributedLock",
	"org.springframework.integration.support.locks.LockRegistry",
	"org.springframework.integration.support.locks.RenewableLockRegistry",
	"org.springframework.integration.support.locks.ExpirableLockRegistry",
	"org.springframework.integration.support.leader.LockRegistryLeaderInitiator",
	"org.springframework.integration.leader.Context",
	"java.util.concurrent.locks.Lock",
}

var (
	publicMethod = regexp.MustCompile(`(?m)^  public .*?[ .](\w+)\(.*\)[^;]*;$`)
	code         = regexp.MustCompile("`[^`\n]+`")
)

// The page for teams that come from Spring has a line for each public method of Spring Integration 7.1, as javap shows them.
func TestSpringPage_NamesEachMethod(t *testing.T) {
	t.Parallel()
	javap := "javap"
	if home := os.Getenv("JAVA_HOME"); home != "" {
		javap = filepath.Join(home, "bin", "javap")
	}
	lib := filepath.Join("jvm", peer.Spring71, "target", "lib")
	jars, err := filepath.Glob(filepath.Join(lib, "spring-integration-*.jar"))
	require.NoError(t, err)
	require.NotEmpty(t, jars)
	args := append([]string{"-public", "-cp", strings.Join(jars, string(os.PathListSeparator))}, springClasses...)
	shown, err := exec.CommandContext(t.Context(), javap, args...).CombinedOutput()
	require.NoError(t, err, "%s", shown)
	var names []string
	for _, method := range publicMethod.FindAllStringSubmatch(string(shown), -1) {
		names = append(names, method[1])
	}
	slices.Sort(names)
	names = slices.Compact(names)
	require.Greater(t, len(names), 30, "%s", shown)

	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "migration", "spring.md"))
	require.NoError(t, err)
	said := strings.Join(code.FindAllString(rows(string(page)), -1), " ")
	for _, name := range names {
		if name == "toString" { // every object has it
			continue
		}
		if !regexp.MustCompile(`\b` + name + `\b`).MatchString(said) {
			t.Errorf("docs/migration/spring.md has no line for %s", name)
		}
	}
}

// rows returns the lines of a page's tables, and its list items.
func rows(page string) string {
	var all []string
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, "|") || strings.HasPrefix(line, "- ") {
			all = append(all, line)
		}
	}
	return strings.Join(all, "")
}
