package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lockregistry/lockregistry/internal/redistest"
)

// The stack that people try: an instance that leads is killed, the alert fires, and the page names the dead process.
func TestStack(t *testing.T) {
	t.Parallel()
	at := map[string]string{}
	for _, name := range []string{"REDIS", "FIRST", "SECOND", "PAGE", "PROMETHEUS"} {
		at[name] = fmt.Sprintf("127.0.0.1:%d", redistest.FreePort(t))
	}
	stack(t, at)
	first, second := &instance{t: t, address: at["FIRST"]}, &instance{t: t, address: at["SECOND"]}
	metrics := server{at["PROMETHEUS"]}
	eventually(t, "somebody leads", time.Minute, func() bool { return first.leads() || second.leads() })
	if second.leads() {
		first = second
	}
	alert := `ALERTS{alertname="LockHolderDead",alertstate="firing"}`
	seen := `lockregistry_fleet_up == 1 and lockregistry_fleet_holds >= 1 and lockregistry_fleet_dead_holders == 0`
	eventually(t, "lockreg is scraped", time.Minute, func() bool {
		found, err := metrics.ask(seen)
		return err == nil && len(found) == 1
	})
	// Its process says who it is once it has held the lock for a second.
	var pid int
	eventually(t, "the page names the leader", time.Minute, func() bool {
		holder := leads(t, at["PAGE"])
		if holder.Label != nil {
			pid = holder.Label.PID
		}
		return pid != 0
	})
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the alert fires", 2*time.Minute, func() bool {
		found, err := metrics.ask(alert)
		return err == nil && len(found) == 1
	})
	if holder := leads(t, at["PAGE"]); holder.Label == nil || holder.Label.PID != pid || holder.OverdueMS+holder.SilentMS == 0 {
		t.Errorf("the page does not name the dead process %d: %+v", pid, holder)
	}
}

// holder is the one of the path that candidates lead by, as the page has it.
type holder struct {
	Label *struct {
		PID int `json:"pid"`
	} `json:"label"`
	OverdueMS int `json:"overdueMs"`
	SilentMS  int `json:"silentMs"`
}

func leads(t *testing.T, page string) (h holder) {
	t.Helper()
	_, body, err := server{page}.get("/lock?path=dispatcher")
	if err != nil {
		t.Fatal(err)
	}
	var answer struct {
		Lock *struct {
			Holders []holder `json:"holders"`
		} `json:"lock"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		t.Fatal(err, string(body))
	}
	if answer.Lock != nil && len(answer.Lock.Holders) == 1 {
		h = answer.Lock.Holders[0]
	}
	return h
}

// stack runs scripts/stack.sh until the test ends.
func stack(t *testing.T, at map[string]string) {
	t.Helper()
	process := exec.CommandContext(t.Context(), "../../scripts/stack.sh")
	process.Env = append(os.Environ(), "STACK_SCRAPE=500ms")
	for name, address := range at {
		process.Env = append(process.Env, "STACK_"+name+"="+address)
	}
	process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	process.Stderr = os.Stderr
	out, err := process.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = process.Wait() })
	t.Cleanup(func() { _ = syscall.Kill(-process.Process.Pid, syscall.SIGTERM) })
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if strings.Contains(lines.Text(), "Kill an instance") {
			go func() {
				for lines.Scan() { // what else it says nobody reads
				}
			}()
			return
		}
	}
	t.Fatal("scripts/stack.sh has ended")
}
