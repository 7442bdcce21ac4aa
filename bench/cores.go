package main

import (
	"context"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// apart runs do with the server on one core and this program on the others, as if the server were on another machine. When one
// goroutine plays ping-pong with the server, the kernel sometimes puts both on one core, which makes a round trip twice as fast
// for a while: a matter of luck that would drown every difference between the contenders. On a machine with one core apart
// changes nothing.
func (s *suite) apart(do func() error) error {
	var everywhere unix.CPUSet
	if err := unix.SchedGetaffinity(0, &everywhere); err != nil || everywhere.Count() < 2 {
		return do()
	}
	server, err := s.observer.processID(s.ctx)
	if err != nil {
		return err
	}
	var servers unix.CPUSet
	others := everywhere
	for core := len(everywhere)*64 - 1; core >= 0; core-- {
		if everywhere.IsSet(core) {
			servers.Set(core)
			others.Clear(core)
			break
		}
	}
	defer func() {
		_ = confine(server, everywhere)
		_ = confine(os.Getpid(), everywhere)
	}()
	if err := confine(server, servers); err != nil {
		return err
	}
	if err := confine(os.Getpid(), others); err != nil {
		return err
	}
	return do()
}

// confine restricts all threads of a process, and the threads that these start later, to some cores.
func confine(process int, cores unix.CPUSet) error {
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", process))
	if err != nil {
		return fmt.Errorf("list the threads of process %d: %w", process, err)
	}
	for _, thread := range threads {
		id, err := strconv.Atoi(thread.Name())
		if err != nil {
			continue
		}
		if err := unix.SchedSetaffinity(id, &cores); err != nil && err != unix.ESRCH {
			return fmt.Errorf("choose the cores of process %d: %w", process, err)
		}
	}
	return nil
}

func (o observer) processID(ctx context.Context) (int, error) {
	id, err := strconv.Atoi(o.info(ctx, "process_id"))
	if err != nil {
		return 0, fmt.Errorf("INFO of the server tells no process id: %w", err)
	}
	return id, nil
}
