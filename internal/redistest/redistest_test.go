package redistest

import (
	"bufio"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if port, err := strconv.Atoi(os.Getenv(asksForPort)); err == nil {
		_, _ = os.Stdout.WriteString(strconv.FormatBool(claimPort(port)))
		return
	}
	goleak.VerifyTestMain(m)
}

// asksForPort makes this program a helper that says whether it may choose a port.
const asksForPort = "REDISTEST_ASKS_FOR_PORT"

// TestFreePort_IsChosenOnce expects a port to belong to one test until it ends, even if nobody listens on it, and while a
// server is down.
func TestFreePort_IsChosenOnce(t *testing.T) {
	free := func(t *testing.T, port int) bool {
		t.Helper()
		another := exec.CommandContext(t.Context(), os.Args[0])
		another.Env = append(os.Environ(), asksForPort+"="+strconv.Itoa(port))
		said, err := another.Output()
		require.NoError(t, err)
		is, err := strconv.ParseBool(string(said))
		require.NoError(t, err)
		return is
	}
	var port int
	t.Run("while a test has it", func(t *testing.T) {
		port = FreePort(t)
		require.False(t, free(t, port))
		require.False(t, claimPort(port), "by this program, too")
		s := Start(t)
		s.Stop()
		require.False(t, free(t, s.port))
	})
	require.True(t, free(t, port), "the test has ended")
}

func TestServer_AnswersAndSavesNothing(t *testing.T) {
	s := Start(t)
	assert.Equal(t, "PONG", s.Command(t, "PING"))
	assert.Equal(t, "save\n", s.Command(t, "CONFIG", "GET", "save"))
	assert.Equal(t, "appendonly\nno", s.Command(t, "CONFIG", "GET", "appendonly"))
	assert.Regexp(t, `^\d+\.\d+\.\d+$`, s.Version(t))
	host, _, err := net.SplitHostPort(s.Addr())
	require.NoError(t, err)
	assert.Equal(t, "127.0.0.1", host)
	assert.True(t, filepath.IsAbs(s.Binary()), "%s", s.Binary())
}

func TestServer_NeedsNoGoroutine(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	s := Start(t)
	s.Command(t, "PING")
}

func TestServer_ExtraArgumentsReachIt(t *testing.T) {
	s := Start(t, "--maxmemory", "64mb", "--requirepass", "secret")
	assert.Equal(t, "maxmemory\n67108864", s.Command(t, "CONFIG", "GET", "maxmemory"))
	assert.Equal(t, "requirepass\nsecret", s.Command(t, "CONFIG", "GET", "requirepass"))
}

func TestReplies(t *testing.T) {
	s := Start(t)
	assert.Equal(t, "OK", s.Command(t, "SET", "key", "line one\r\nline two"))
	assert.Equal(t, "line one\r\nline two", s.Command(t, "GET", "key"))
	assert.Equal(t, "(nil)", s.Command(t, "GET", "absent"))
	assert.Equal(t, "1", s.Command(t, "EXISTS", "key"))
	assert.Equal(t, "1\n(nil)\nx\n2\n3", s.Command(t, "EVAL", "return {1, false, 'x', {2, 3}}", "0"))

	_, err := s.Do("LPUSH", "key", "x")
	var refused ReplyError
	require.ErrorAs(t, err, &refused)
	assert.True(t, strings.HasPrefix(refused.Error(), "WRONGTYPE"), "%s", refused)

	in := bufio.NewReader(strings.NewReader("*2\r\n-ERR first\r\n+second\r\n"))
	got, err := readReply(in)
	require.NoError(t, err, "an error inside an array leaves the rest readable")
	assert.Equal(t, "ERR first\nsecond", got)
}

func TestReplies_Broken(t *testing.T) {
	for name, text := range map[string]string{
		"nothing":        "",
		"empty line":     "\r\n",
		"unknown kind":   "?x\r\n",
		"no length":      "$x\r\n",
		"cut short":      "$5\r\nab",
		"array too long": "*2\r\n+a\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			_, err := readReply(bufio.NewReader(strings.NewReader(text)))
			require.Error(t, err)
		})
	}
}

func TestServer_StopEndsTheProcess(t *testing.T) {
	s := Start(t)
	pid := s.process.Process.Pid
	dir := s.dir
	s.Stop()
	_, err := s.Do("PING")
	require.Error(t, err)
	assert.True(t, exited(pid))
	assert.NoDirExists(t, dir)
	s.Stop()
}

func TestServer_RestartKeepsThePortAndDropsTheData(t *testing.T) {
	s := Start(t)
	before := s.Addr()
	process := s.Command(t, "INFO", "server")
	s.Command(t, "SET", "key", "value")

	s.Restart(t)
	assert.Equal(t, before, s.Addr())
	assert.Equal(t, "0", s.Command(t, "DBSIZE"))
	assert.NotEqual(t, field(process, "process_id"), field(s.Command(t, "INFO", "server"), "process_id"))

	s.Stop()
	s.Restart(t)
	assert.Equal(t, "PONG", s.Command(t, "PING"), "a stopped server restarts too")
}

func TestServer_FrozenAnswersOnlyOnceThawed(t *testing.T) {
	t.Parallel()
	s := Start(t)
	conn, err := net.Dial("tcp", s.Addr())
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	reader := bufio.NewReader(conn)

	s.Freeze()
	s.Freeze()
	_, err = io.WriteString(conn, "PING\r\n")
	require.NoError(t, err)
	// A process that was not stopped would answer within microseconds.
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(100*time.Millisecond)))
	_, err = reader.ReadString('\n')
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)

	s.Thaw()
	s.Thaw()
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(commandLimit)))
	answer, err := reader.ReadString('\n')
	require.NoError(t, err)
	assert.Equal(t, "+PONG\r\n", answer)
}

func TestServer_FrozenCanBeStopped(t *testing.T) {
	s := Start(t)
	s.Freeze()
	s.Stop()
	s.Restart(t)
	assert.Equal(t, "PONG", s.Command(t, "PING"))
}

func TestServer_ThatCannotStartShowsItsOutput(t *testing.T) {
	_, err := Run("", "--no-such-option", "x")
	require.Error(t, err)
	assert.Contains(t, err.Error(), "exited before it answered")
	assert.Contains(t, err.Error(), "no-such-option")
}

func TestServer_TakenPortIsToldApart(t *testing.T) {
	listener, err := net.Listen("tcp", addr(FreePort(t)))
	require.NoError(t, err)
	defer func() { _ = listener.Close() }()
	binary, err := find("")
	require.NoError(t, err)
	s := &Server{binary: binary, port: listener.Addr().(*net.TCPAddr).Port}
	// Nobody accepts on that port, so that PING fails at its deadline at the
	// latest; closing what comes in makes it fail at once.
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	}()
	require.ErrorIs(t, s.launch(), errPortTaken)
}

func TestServer_AnotherServersAnswerIsNotTakenForOurs(t *testing.T) {
	winner := Start(t)
	loser := &Server{binary: winner.binary, port: winner.port}
	require.ErrorIs(t, loser.launch(), errPortTaken)
}

func TestServer_MissingTellsWhatToInstall(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	t.Setenv(serverVariable, "")
	_, err := find("")
	require.ErrorIs(t, err, exec.ErrNotFound)
	assert.Contains(t, err.Error(), "apt-get install redis-server")
	assert.Contains(t, err.Error(), "brew install redis")

	t.Setenv(serverVariable, "/does/not/exist")
	_, err = find("")
	require.Error(t, err)
	assert.Contains(t, err.Error(), serverVariable)
}

func TestBinaries_ListsTheDefaultFirstAndEachOnce(t *testing.T) {
	standard, err := find("")
	require.NoError(t, err)
	other := filepath.Join(t.TempDir(), "other-server")
	require.NoError(t, os.Symlink(standard, other))
	t.Setenv(serversVariable, other+", "+standard+string(os.PathListSeparator)+other+",")
	assert.Equal(t, []string{standard, other}, Binaries(t))
	assert.Equal(t, other, StartBinary(t, other).Binary())
}

func TestServer_DiesWithTheProgramThatStartedIt(t *testing.T) {
	t.Parallel()
	const variable = "REDISTEST_ABANDON"
	if os.Getenv(variable) != "" {
		s, err := Run("")
		require.NoError(t, err)
		s.Freeze()
		_, _ = os.Stdout.WriteString("started " + s.Addr() + "\n")
		process, err := os.FindProcess(os.Getpid())
		require.NoError(t, err)
		require.NoError(t, process.Kill())
		select {}
	}
	dir := t.TempDir()
	program := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	program.Env = append(os.Environ(), variable+"=1", "TMPDIR="+dir)
	output, err := program.Output()
	var killed *exec.ExitError
	require.ErrorAs(t, err, &killed)
	_, address, ok := strings.Cut(strings.TrimSpace(string(output)), "started ")
	require.True(t, ok, "%s", output)
	require.Eventually(t, func() bool {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	}, 10*time.Second, 10*time.Millisecond, "server at %s outlives its program", address)
	require.Eventually(t, func() bool {
		left, err := filepath.Glob(filepath.Join(dir, "redistest-*")) // the file by which programs choose ports stays
		return err == nil && len(left) == 0
	}, 10*time.Second, 10*time.Millisecond, "something is left in %s", dir)
}

func TestServer_ManySideBySide(t *testing.T) {
	t.Parallel()
	const servers = 8
	results := make(chan error, servers)
	for i := range servers {
		go func() {
			s, err := Run("")
			if err == nil {
				_, err = s.Do("SET", "key", strconv.Itoa(i))
			}
			if err == nil {
				var got string
				if got, err = s.Do("GET", "key"); err == nil && got != strconv.Itoa(i) {
					err = errors.New("server " + strconv.Itoa(i) + " holds the value of " + got)
				}
			}
			if s != nil {
				s.Stop()
			}
			results <- err
		}()
	}
	for range servers {
		assert.NoError(t, <-results)
	}
}

func TestCluster(t *testing.T) {
	t.Parallel()
	for _, nodes := range []int{1, 3} {
		t.Run(strconv.Itoa(nodes), func(t *testing.T) {
			t.Parallel()
			servers := StartCluster(t, nodes)
			require.Len(t, servers, nodes)
			owners := 0
			for _, s := range servers {
				_, err := s.Do("SET", "key", "value")
				if err == nil {
					owners++
					continue
				}
				assert.True(t, strings.HasPrefix(err.Error(), "MOVED "), "%v", err)
			}
			assert.Equal(t, 1, owners, "one node serves a key")
		})
	}
}
