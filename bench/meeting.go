package main

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// meeting is memory that processes share, to see which of them are inside a section together. It depends neither on Redis nor
// on a lock.
type meeting struct {
	inside atomic.Int32
	most   atomic.Int32 // the most that were ever inside at once
	last   atomic.Int32 // the process that was inside last
	passed atomic.Int64 // how often the next process inside was another one
	left   atomic.Int64 // when the last section ended, in nanoseconds since 1970
}

const meetingSize = 4096

// newMeeting makes a file for processes to meet in.
func newMeeting() (place *meeting, file string, err error) {
	f, err := os.CreateTemp("", "meeting")
	if err != nil {
		return nil, "", err
	}
	err = errors.Join(f.Truncate(meetingSize), f.Close())
	if err == nil {
		place, err = meet(f.Name())
	}
	if err != nil {
		return nil, "", errors.Join(err, os.Remove(f.Name()))
	}
	return place, f.Name(), nil
}

// meet maps the file. It stays mapped for as long as the process lives.
func meet(file string) (*meeting, error) {
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("the file that processes share: %w", err)
	}
	defer func() { _ = f.Close() }()
	memory, err := unix.Mmap(int(f.Fd()), 0, meetingSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("share %s with other processes: %w", file, err)
	}
	return (*meeting)(unsafe.Pointer(unsafe.SliceData(memory))), nil //nolint:gosec // a page is aligned for every type
}

// enter begins a section and reports whether that was allowed: only readers may be inside together. took is the time since the
// previous section ended, if another process had that section, otherwise 0.
func (m *meeting) enter(process int, reads bool) (right bool, took time.Duration) {
	now := m.inside.Add(1)
	most := m.most.Load()
	for now > most && !m.most.CompareAndSwap(most, now) {
		most = m.most.Load()
	}
	if !reads && m.last.Swap(int32(process)) != int32(process) { //nolint:gosec // a handful of processes
		m.passed.Add(1)
		if left := m.left.Load(); left != 0 {
			took = time.Duration(time.Now().UnixNano() - left)
		}
	}
	return reads || now == 1, took
}

// leave ends a section: the process is about to unlock.
func (m *meeting) leave() {
	m.inside.Add(-1)
	m.left.Store(time.Now().UnixNano())
}

// reset clears all figures.
func (m *meeting) reset() {
	m.inside.Store(0)
	m.most.Store(0)
	m.last.Store(-1)
	m.passed.Store(0)
	m.left.Store(0)
}
