package failover

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/lockregistry/lockregistry/internal/redistest"
)

func all(string) bool { return true }

// sentinelsTell is how soon after the promotion the paths must be served, see within: the Sentinels tell each other of it every
// two seconds, and clients ask any of them.
const sentinelsTell = 5 * time.Second

// told is how soon after its client has changed to another master the owner of a lost hold must be told.
const told = 100 * time.Millisecond

func TestSentinelMasterIsKilled(t *testing.T) {
	t.Parallel()
	d := redistest.StartSentinels(t, 2, 3)
	rounds(t, 1, 10, func(t *testing.T, v variant) {
		f := start(t, d, v, usual, all)
		master := d.Master("", nil)
		at := time.Now()
		master.Kill()
		promoted := f.promoted("", master, at)
		o := f.judge("SIGKILL of a master, Sentinel", v, at, promoted)
		assert.Zero(t, o.patient, "errors of calls with Wait")
		assert.Less(t, o.served, within(sentinelsTell))
		master.Revive(t)
		d.AwaitHealthy()
	})
}

func TestSentinelMasterIsStopped(t *testing.T) {
	t.Parallel()
	d := redistest.StartSentinels(t, 2, 3)
	rounds(t, 1, 10, func(t *testing.T, v variant) {
		f := start(t, d, v, usual, all)
		master := d.Master("", nil)
		at := d.FreezeSettled(master) // see TestClusterMasterIsStopped
		promoted := f.promoted("", master, at)
		f.awaitServed(promoted)
		wait(time.Until(promoted.Add(4 * time.Second)))
		master.Thaw()
		wait(10 * time.Second) // by then the old master is demoted
		o := f.judge("SIGSTOP of a master, continued 4 s after the promotion, Sentinel", v, at, promoted)
		assert.Zero(t, o.patient, "errors of calls with Wait")
		assert.Less(t, o.served, within(sentinelsTell))
		assert.Zero(t, o.doubles, "owners inside at once")
		d.AwaitHealthy()
	})
}

func TestSentinelFailover(t *testing.T) {
	t.Parallel()
	d := redistest.StartSentinels(t, 2, 3)
	rounds(t, 1, 10, func(t *testing.T, v variant) {
		p := usual
		p.stayed = 16 // so that many are locked between the promotion and the switch
		f := start(t, d, v, p, all)
		at := time.Now()
		_, promoted := d.Failover("")
		o := f.judge("SENTINEL FAILOVER", v, at, promoted)
		assert.Zero(t, o.patient, "errors of calls with Wait")
		assert.Less(t, o.told, within(told+3*o.late)) // the check of the client, the reply, and the owner's reaction
		d.AwaitHealthy()
	})
}

func TestSentinelIsRestarted(t *testing.T) {
	t.Parallel()
	d := redistest.StartSentinels(t, 2, 3)
	rounds(t, 1, 10, func(t *testing.T, v variant) {
		f := start(t, d, v, usual, all)
		at := time.Now()
		restart(t, d)
		o := f.judge("full restart, Sentinel", v, at, time.Now())
		assert.Zero(t, o.patient, "errors of calls with Wait")
		assert.Less(t, o.served, afterRestart())
		assert.Zero(t, o.doubles, "owners inside at once")
		d.AwaitHealthy()
	})
}
