package redistest

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	// startLimit is how long a server may take until it answers; ample for a
	// loaded machine, since a healthy one needs milliseconds.
	startLimit = 20 * time.Second
	// startPause is the pause between two looks at a starting server.
	startPause = 5 * time.Millisecond
	// portAttempts bounds how often another port is tried.
	portAttempts = 20
	// outputShown is how much of a failed server's output an error quotes.
	outputShown = 4 << 10
)

var errPortTaken = errors.New("port is taken")

// Server is one running redis-server. Its methods may be called from several
// goroutines.
type Server struct {
	binary   string
	args     []string
	password string
	port     int

	// mu makes starting, stopping, freezing and thawing happen one at a time. It is held until the process has changed its state.
	mu       sync.Mutex
	process  *exec.Cmd      // nil while stopped
	watchdog *exec.Cmd      // kills process if this program dies first
	lifeline io.WriteCloser // the watchdog acts when this end closes
	frozen   bool
	dir      string // working directory and output of the process; kept by Kill

	sentinel bool // it is a Sentinel
}

// Run starts a server for a program that is no test. The caller must call Stop.
// An empty binary means the default one.
//
// The port, the address and the working directory are chosen here; args may set
// anything else. Commands sent through Do authenticate by a --requirepass among
// args.
func Run(binary string, args ...string) (*Server, error) {
	path, err := find(binary)
	if err != nil {
		return nil, err
	}
	return run(&Server{binary: path, args: args})
}

func run(s *Server) (_ *Server, err error) {
	for i, arg := range s.args {
		if arg == "--requirepass" && i+1 < len(s.args) {
			s.password = s.args[i+1]
		}
	}
	for range portAttempts {
		s.port = choosePort()
		if err = s.launch(); err == nil {
			return s, nil
		}
		givePort(s.port)
		if !errors.Is(err, errPortTaken) {
			break
		}
	}
	return nil, err
}

func addr(port int) string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
}

// Addr returns the server's host and port. They stay the same over a restart.
func (s *Server) Addr() string { return addr(s.port) }

// Binary returns the path of the server's program.
func (s *Server) Binary() string { return s.binary }

// launch starts a process on s.port and waits until it answers.
func (s *Server) launch() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	end := s.kill // the directory stays
	if s.dir == "" {
		end = s.stop
		dir, err := os.MkdirTemp("", "redistest-")
		if err != nil {
			return fmt.Errorf("redistest: no working directory for a server: %w", err)
		}
		s.dir = dir
	}
	if err := s.spawn(); err != nil {
		end()
		return fmt.Errorf("redistest: cannot start %s: %w", s.binary, err)
	}
	if err := s.awaitReady(); err != nil {
		err = fmt.Errorf("redistest: %s on %s: %w; its output:\n%s", s.binary, s.Addr(), err, s.output())
		end()
		return err
	}
	return nil
}

// spawn starts the process, its output going to a file: a pipe would need a
// goroutine to drain it.
func (s *Server) spawn() error {
	output, err := os.Create(s.outputPath())
	if err != nil {
		return err
	}
	defer func() { _ = output.Close() }()
	args, err := s.arguments()
	if err != nil {
		return err
	}
	process := exec.Command(s.binary, args...)
	process.Stdout, process.Stderr = output, output
	if err := process.Start(); err != nil {
		return err
	}
	s.process = process
	return s.watch()
}

func (s *Server) arguments() ([]string, error) {
	args := []string{"--port", strconv.Itoa(s.port), "--bind", "127.0.0.1", "--dir", s.dir}
	if s.sentinel { // it writes to its configuration file, which comes first
		file, err := os.OpenFile(filepath.Join(s.dir, "sentinel.conf"), os.O_CREATE, 0o600)
		if err != nil {
			return nil, err
		}
		_ = file.Close()
		args = append(append([]string{file.Name()}, args...), "--sentinel")
	} else {
		args = append(args, "--save", "", "--appendonly", "no")
	}
	return append(args, s.args...), nil
}

// awaitReady returns once the server answers, or with why it never will.
func (s *Server) awaitReady() error {
	for deadline := time.Now().Add(startLimit); ; time.Sleep(startPause) {
		answer, err := s.Do("PING")
		if err == nil && answer == "PONG" {
			return s.checkIdentity()
		}
		if exited(s.process.Process.Pid) {
			if strings.Contains(strings.ToLower(s.output()), "address already in use") {
				return errPortTaken
			}
			return errors.New("exited before it answered")
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("no answer to PING within %v (last: %q, %w)", startLimit, answer, err)
		}
	}
}

// checkIdentity makes sure that it was our process that answered. Test programs
// run side by side, so two may pick one port at the same moment; the loser would
// then talk to the winner's server. A server that does not tell its process id
// is believed.
func (s *Server) checkIdentity() error {
	info, _ := s.Do("INFO", "server")
	told := field(info, "process_id")
	if told != "" && told != strconv.Itoa(s.process.Process.Pid) {
		return errPortTaken
	}
	return nil
}

// Running reports whether the server has been neither killed nor stopped.
func (s *Server) Running() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.process != nil
}

// Frozen reports whether the server is stopped by Freeze.
func (s *Server) Frozen() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.frozen
}

// Stop kills the server, frozen or not, and waits until it is gone. Stopping a
// stopped server does nothing. Its port is kept for Restart.
func (s *Server) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stop()
}

func (s *Server) stop() {
	s.kill()
	if s.dir != "" {
		_ = os.RemoveAll(s.dir)
		s.dir = ""
	}
}

// Kill kills the server with SIGKILL, frozen or not, and keeps what it has written to disk for [Server.Revive].
func (s *Server) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kill()
}

func (s *Server) kill() {
	// The watchdog goes first: once the server has been waited for, its process id may be reused.
	if s.watchdog != nil {
		_ = s.watchdog.Process.Kill()
		_ = s.watchdog.Wait()
		_ = s.lifeline.Close()
		s.watchdog, s.lifeline = nil, nil
	}
	if s.process != nil {
		_ = s.process.Process.Kill() // a frozen server must not run on for a moment
		_ = s.process.Wait()
		s.process = nil
	}
	s.frozen = false
}

// Revive starts a killed server on its port, with what it had written to disk: its data, if args make it save them, and the
// configuration of a cluster's node.
func (s *Server) Revive(tb testing.TB) {
	tb.Helper()
	if err := s.relaunch(); err != nil {
		tb.Fatal(err)
	}
}

func (s *Server) relaunch() error {
	// A server's port may stay taken for a moment after its end.
	for deadline := time.Now().Add(startLimit); ; time.Sleep(startPause) {
		err := s.launch()
		if !errors.Is(err, errPortTaken) || time.Now().After(deadline) {
			return err
		}
	}
}

// Restart kills the server if it runs and starts it on the same port, with no data.
func (s *Server) Restart(tb testing.TB) {
	tb.Helper()
	s.Stop()
	if err := s.relaunch(); err != nil {
		tb.Fatal(err)
	}
}

// Freeze stops the server's process in its tracks: connections stay open and
// nothing is answered. It returns once the process has really stopped.
func (s *Server) Freeze() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process == nil {
		panic("redistest: Freeze of a stopped server")
	}
	if s.frozen {
		return
	}
	if err := freeze(s.process.Process); err != nil {
		panic(fmt.Sprintf("redistest: cannot freeze %s: %v", s.Addr(), err))
	}
	s.frozen = true
}

// Thaw lets a frozen server go on; it then answers the commands that were sent meanwhile.
func (s *Server) Thaw() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process == nil || !s.frozen {
		return
	}
	if err := thaw(s.process.Process); err != nil {
		panic(fmt.Sprintf("redistest: cannot thaw %s: %v", s.Addr(), err))
	}
	s.frozen = false
}

func (s *Server) outputPath() string { return filepath.Join(s.dir, "output.log") }

// output returns the end of the server's output.
func (s *Server) output() string {
	text, err := os.ReadFile(s.outputPath())
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-outputShown):])
}
