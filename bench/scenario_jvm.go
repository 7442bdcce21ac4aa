package main

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/lockregistry/lockregistry/internal/peer"
)

// javaLock is a Java library, as its program in ../test/interop/jvm opens it.
type javaLock struct {
	name, module string
	settings     peer.Fields
	poll         time.Duration
}

var javaLocks = []javaLock{
	{"Spring 7.1, SPIN_LOCK", peer.Spring71, peer.Fields{"mode": "spin_lock"}, 100 * time.Millisecond},
	{"Spring 7.1, PUB_SUB_LOCK", peer.Spring71, peer.Fields{"mode": "pub_sub_lock"}, 0},
	{"Redisson 4.7", peer.Redisson, nil, 0},
}

// pairOf is two processes that have opened the same contender under the same name.
type pairOf struct {
	contender
	processes fleet
}

var javaTime = metric{name: "one thread", unit: nanoseconds, compared: true}

// java measures this library beside the Java libraries, all driven over pipes in the same way.
func (s *suite) java() ([]*result, error) {
	project := peer.Java{Dir: filepath.Join("..", "test", "interop", "jvm")}
	if reason := s.noJava(project); reason != "" {
		s.say("the Java libraries are left out: %s", reason)
		return []*result{{scenario: "jvm", title: "Beside the Java libraries", how: "Left out: " + reason + "."}}, nil
	}
	_, port, err := net.SplitHostPort(s.addr)
	if err != nil {
		return nil, err
	}
	var pairs []pairOf
	defer func() {
		for _, p := range pairs {
			_ = p.processes.close()
		}
	}()
	own, err := s.fleet(2, s.opens(thisLibrary, 0), s.opens(bareFloor, 0))
	if err != nil {
		return nil, err
	}
	pairs = append(pairs, pairOf{bareFloor, own}, pairOf{thisLibrary, own[:2:2]})
	for _, j := range javaLocks {
		c := contender{name: j.name, role: rival, poll: j.poll}
		pair := pairOf{contender: c}
		for i := range 2 {
			started, err := project.Start(fmt.Sprintf("%s, %d", j.name, i), j.module)
			if err != nil {
				return nil, errors.Join(err, pair.processes.close())
			}
			pair.processes = append(pair.processes, process{started})
			fields := peer.Fields{"registry": j.name, "port": port, "prefix": "java"}
			maps.Copy(fields, j.settings)
			if _, err := pair.processes[i].ask(s.ctx, "main", doOpen, fields); err != nil {
				return nil, errors.Join(fmt.Errorf("open %s: %w", j.name, err), pair.processes.close())
			}
		}
		pairs = append(pairs, pair)
	}
	for _, p := range pairs {
		for _, warm := range p.processes {
			if _, err := s.holds(process{warm.Peer}, p.name, 3000); err != nil {
				return nil, fmt.Errorf("%s: %w", p.name, err)
			}
		}
	}
	const each, most, limit = 200, 60, 800 * time.Millisecond
	rounds := either(s, 4, 2)
	r := &result{
		scenario: "jvm",
		title:    "Beside the Java libraries",
		how: fmt.Sprintf("Processes of each library, driven over pipes. “One thread”: from before lock to after unlock, in one process that nobody "+
			"disturbs, %d times a round, the median. Handoff between two processes as above: %d, or %v, a round. %d rounds, in "+
			"shuffled order. The JVMs were warmed up with 3 000 locks and unlocks; they run with the first compiler tier only.",
			each, most, limit, rounds),
		metrics: []metric{javaTime, handoffMedian, handoffTail, handoffs},
	}
	err = turns(s, rounds, pairs, func(round int, p pairOf) error {
		took, err := s.holds(p.processes[0], p.name, each)
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		passed, err := relay{s, p.processes.parties(p.name), fmt.Sprintf("relay-%d", round), settling, p.poll, 1}.run(most, limit)
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		values := latencies(passed)
		values[javaTime.name] = median(took)
		r.record(p.contender, values)
		return nil
	})
	r.inOrder()
	return []*result{r}, err
}

// holds makes one thread of a process lock and unlock its own path n times.
func (s *suite) holds(p process, registry string, n int) ([]float64, error) {
	took := make([]float64, n)
	for i := range took {
		reply, err := p.ask(s.ctx, "main", doHold, peer.Fields{"registry": registry, "path": "alone", "for": "0"})
		if err != nil {
			return nil, err
		}
		took[i] = float64(reply.End.Sub(reply.Begin).Nanoseconds())
	}
	return took, nil
}

// noJava is why the Java libraries cannot take part.
func (s *suite) noJava(project peer.Java) string {
	for _, program := range []string{"java", "mvn"} {
		if _, err := exec.LookPath(program); err != nil {
			return "there is no " + program + " on PATH"
		}
	}
	if _, err := os.Stat(project.Dir); err != nil {
		return "their programs are looked for in " + project.Dir + ", from the folder bench"
	}
	if err := project.Build(s.ctx); err != nil {
		return err.Error()
	}
	return ""
}
