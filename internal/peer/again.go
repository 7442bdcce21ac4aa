package peer

import (
	"fmt"
	"os"
	"os/exec"
)

// variable is set in a program that [Again] has started.
const variable = "LOCKREGISTRY_PEER"

// Again starts this program once more. [Main] says what it does there.
func Again(name string) (*Peer, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program to start it again: %w", err)
	}
	cmd := exec.Command(self) //nolint:gosec,noctx // itself; it ends when its input does
	cmd.Env = append(os.Environ(), variable+"=1")
	return Start(name, cmd)
}

// Main serves all requests and then ends the program, if [Again] has started it. Otherwise it does nothing.
func Main(run func(request Fields) (Fields, error)) {
	if os.Getenv(variable) == "" {
		return
	}
	if err := Serve(os.Stdin, os.Stdout, run); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}
