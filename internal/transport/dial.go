package transport

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/belief"
	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
)

// dialer gets dedicated connections to a node from the client: for a lone caller, see ownConns; for a suspect node, see
// freshConns; and to wait for replicas, see replicator.
//
// Rueidis hands out a pooled connection before it makes a new one. Another user of the client may have left one in the pool
// that is old or has another database selected. So the server is asked for CLIENT INFO on each. A connection that does not fit
// is closed on a suspect node, since it may lead to a former master; otherwise it goes back to the pool. A client of Open is
// used by the library alone: there it is always closed, so that the next one is dialled.
//
// A lock in another database would exclude nobody. So until the database of the shared connections is known, only a connection
// to database 0, the default, fits. A client without a wrapper is asked for its database early.
//
// Dedicate takes no context. It hangs for 5 s if the server is frozen, and for as long as the pool is exhausted. So a goroutine
// calls it, and closes the connection if the attempt is over by then.
type dialer struct {
	node     func() rueidis.Client // nil: rueidis does not know it
	judge    *judge
	pool     *pool
	database func(limit time.Duration) (number string, known bool) // see Client.database
	unfit    atomic.Int32                                          // how many connections in a row did not fit, and were closed

	mu      sync.Mutex
	hanging []clock.Instant // when the attempts whose goroutines still wait for the client began
}

// pool is what is known about a client's connections.
type pool struct {
	selected atomic.Pointer[string] // the database of the shared ones; empty: the server does not say; nil: not known yet
	asked    atomic.Int32           // how often the server was asked for it in the background
	sole     atomic.Bool            // nobody else uses the client
	one      bool                   // there is one database: in a cluster
}

// wanted is what a dedicated connection is for.
type wanted struct {
	from  func() rueidis.Client // a pooled connection of this client is as good as a new one; nil: it must be new
	skips int                   // connections to a replica to skip: they may come from the pool, although they look new
}

// dedicated is a connection on which only one part sends.
type dedicated struct {
	rueidis.DedicatedClient
	made clock.Instant // when making it began
	told bool          // the server has reported its age and database
	back func()        // gives it to the client's pool; see giveBack
}

const (
	// poolWait: an attempt that hangs for longer shows that the pool is exhausted, since on a frozen server rueidis gives up after
	// 5 s. There is at most one attempt a second, so few goroutines hang.
	// Half of it: on a frozen server commands go over connections that may lead to a former master.
	// Twice: where the pool is exhausted, a suspect node sends nothing for twelve seconds.
	poolWait = 6 * belief.Connect

	// mostIdle is how many pooled connections an attempt looks at while the node is not suspect. The application goes without each
	// of them for a Tick.
	// Twice: it goes without more of them. Half of it: with that many idle ones in the pool a lone caller gets no connection.
	mostIdle = 8

	// mostUnfit is how many connections that do not fit are closed in a row: as many as are pooled by default. After that each
	// attempt closes only one, since behind a proxy that reports its own age even new ones look old.
	// Half of it: it takes minutes to get through a full pool of old ones. Twice: twice as many new ones are made in vain.
	mostUnfit = 1024
)

// dial returns a connection, or nil if there is none in the time that making one may take.
func (d *dialer) dial(w wanted) *dedicated {
	since := d.judge.clock.Now()
	if d.exhausted(since) {
		return nil
	}
	d.mu.Lock()
	d.hanging = append(d.hanging, since)
	d.mu.Unlock()
	made, over := make(chan *dedicated), make(chan struct{})
	defer close(over)
	go func() {
		c := d.find(w, since)
		d.mu.Lock()
		i := slices.Index(d.hanging, since)
		d.hanging = slices.Delete(d.hanging, i, i+1)
		d.mu.Unlock()
		select {
		case made <- c:
		case <-over:
			c.end()
		}
	}()
	for left := d.left(since); left > 0; left = d.left(since) { // the round trip may have become longer
		select {
		case c := <-made:
			return c
		case <-time.After(left):
		}
	}
	return nil
}

// exhausted reports whether the client's pool is exhausted: an attempt has hung for poolWait.
func (d *dialer) exhausted(now clock.Instant) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.hanging) > 0 && d.hanging[0].Until(now) >= poolWait
}

// left returns how much time is left to an attempt that began at since.
func (d *dialer) left(since clock.Instant) time.Duration {
	return d.judge.clock.Now().Until(since.Add(d.judge.RoundTrip().Connect())) // mutant: late greeting
}

// find gets connections until one fits. A connection that answers late may lead to a former master that has just resumed.
func (d *dialer) find(w wanted, since clock.Instant) *dedicated {
	node, limit := d.node, belief.Silence
	if w.from != nil {
		node = w.from
	}
	if d.judge.IsSuspect(since) { // many in the pool may be silent
		limit = askLimit
	}
	e := exam{dialer: d, isKnown: d.askDatabase(w)}
	for idle := 0; idle < mostIdle; {
		client := node()
		if client == nil {
			return nil
		}
		c, is := &dedicated{made: since}, fits
		c.DedicatedClient, c.back = client.Dedicate()
		ask := func(words ...string) rueidis.RedisResult { return c.ask(d.judge.RoundTrip().Plus(limit), words...) }
		if w.from == nil {
			is = e.of(c, ask)
		}
		if is == fits && w.skips > 0 {
			is = byRole(ask("HELLO"))
		}
		if d.left(since) <= 0 {
			is = useless
		}
		switch is {
		case fits:
			d.unfit.Store(0)
			return c
		case useless:
			c.Close()
			return nil
		case broken:
			c.Close()
			idle++
		case ofReplica:
			w.skips--
			c.Close()
		case unfit:
			if !d.judge.IsSuspect(d.judge.clock.Now()) && !d.pool.sole.Load() {
				idle++
				time.AfterFunc(belief.Tick, func() { c.giveBack(d.judge.RoundTrip().Plus(belief.Silence)) })
				continue
			}
			c.Close()
			if d.unfit.Add(1) > mostUnfit {
				return nil
			}
		}
	}
	return nil
}

// askDatabase asks for the database of the shared connections in the background, if the wanted connection must use the same one
// and it is not known yet. Known waits for the answer, and reports whether the database is known then. That may take as long as
// making a connection, since the client may have to make one to ask.
func (d *dialer) askDatabase(w wanted) (known func() bool) {
	if w.from != nil || d.pool.selected.Load() != nil {
		return func() bool { return true }
	}
	told := make(chan bool, 1)
	go func() {
		_, is := d.database(belief.Connect)
		told <- is
	}()
	return sync.OnceValue(func() bool { return <-told })
}

// byRole judges a connection by the reply to HELLO.
func byRole(hello rueidis.RedisResult) fitness {
	role, _ := roleIn(hello)
	switch {
	case errors.Is(hello.Error(), fault.NoAnswer):
		return useless
	case role == belief.Replica:
		return ofReplica
	default:
		return fits
	}
}

// end closes the connection, if there is one.
func (c *dedicated) end() {
	if c != nil {
		c.Close()
	}
}

// giveBack gives the connection to the client's pool. Rueidis unsubscribes on it then, if commands were pipelined on it; where
// that is not safe, the connection is closed first.
func (c *dedicated) giveBack(limit time.Duration) {
	if !fault.MayUnsubscribe(c.ask(limit, "PING")) {
		c.Close()
	}
	c.back()
}

// ask asks the server something. It closes the connection if there is no answer in time. It passes no context that can end: with
// one rueidis would start goroutines for the connection. The command counts as blocking, so that rueidis closes the connection
// without waiting for it.
func (c *dedicated) ask(limit time.Duration, words ...string) rueidis.RedisResult {
	late := time.AfterFunc(limit, c.Close)
	reply := c.Do(context.Background(), c.B().Arbitrary(words...).Blocking())
	if !late.Stop() {
		return rueidis.NewErrorResult(fault.NoAnswer)
	}
	return reply
}

// Sole notes that nobody else uses the client, because Open has made it, and which database its connections use.
func (t *Client) Sole(database int) {
	number := strconv.Itoa(database)
	t.pool.selected.Store(&number)
	t.pool.sole.Store(true)
}

// database returns the database of the shared connections, and whether it is known; it is empty if the server does not say. It
// depends only on the client's options, so it is asked for once. The question may take limit, plus two round trips.
func (t *Client) database(limit time.Duration) (number string, known bool) {
	if known := t.pool.selected.Load(); known != nil {
		return *known, true
	}
	info, err := t.describe(limit)
	if err != nil && !fault.RefusesInfo(err) { // mutant: whole refusal taken for an answer
		return "", false
	}
	number = databaseIn(info)
	t.pool.selected.Store(&number)
	return number, true
}

// learnDatabase asks for the database in the background, unless it is known: once the node is suspect, the shared connections
// may be silent, and no other can be used until the database is known.
func (t *Client) learnDatabase() {
	const most = 3 // a proxy may end the connection at the question, and other commands share the connection
	if t.pool.selected.Load() == nil && t.pool.asked.Load() < most && t.pool.asked.Add(1) <= most {
		go t.database(belief.Connect)
	}
}

// describe asks for CLIENT INFO of a shared connection, also while the node is suspect: a fresh connection may use another
// database.
func (t *Client) describe(limit time.Duration) (info string, err error) {
	ask := single(func(b rueidis.Builder) rueidis.Completed { return b.Arbitrary("CLIENT", "INFO").Build().ToPipe() })
	w := Wait{Ctx: context.Background(), Limit: t.First.RoundTrip().Plus(limit)}
	return t.First.inquire(&w, true, ask).result(0).ToString()
}

// exam finds out, in one attempt to get a dedicated connection, which connection is new and uses the database of the shared
// ones. It asks each for CLIENT INFO.
//
// A server or a proxy might not say, because it does not know the question or does not permit it. Then the connection fits. No
// other error means that. If a connection could not be made, each command on it fails with the server's error for HELLO, AUTH or
// SELECT. If it breaks, it may have been broken in the pool already.
//
// A proxy that ends each connection at the question does not say, either. One connection that ends is no proof of that, but two
// in one attempt are, if they had just answered PING. The next one fits if it answers PING, too:
//
//	1  CLIENT INFO ─▶ ends              it may have been broken in the pool
//	2  PING ─▶ PONG, CLIENT INFO ─▶ ends
//	3  PING ─▶ PONG, CLIENT INFO ─▶ ends
//	4  PING ─▶ PONG                     fits
//
// Each attempt starts over. A server that breaks its connections for a while hardly does so twice at just these points, and the
// next attempt asks it again.
type exam struct {
	*dialer
	isKnown  func() bool // waits for the database of the shared connections, see dialer.askDatabase
	oneBroke bool        // a connection has broken
	ended    int         // connections that ended at CLIENT INFO, and had just answered PING
}

// fitness is what an exam finds.
type fitness uint8

const (
	fits      fitness = iota
	unfit             // it is old, or of another database; the next one may fit
	broken            // others in the pool may be broken, too
	ofReplica         // it leads to a replica
	useless           // the next one would be useless, too
)

// enough: when this many connections have ended at the question, the next one is not asked.
const enough = 2 // mutant: end taken for an answer

// of examines a connection.
func (e *exam) of(c *dedicated, ask func(words ...string) rueidis.RedisResult) fitness {
	if e.oneBroke {
		if is := e.ofError(ask("PING").Error()); is != fits {
			return is
		}
		if e.ended == enough {
			e.pool.selected.CompareAndSwap(nil, new(string))
			return e.untold(ask)
		}
	}
	info := ask("CLIENT", "INFO")
	text, _ := info.ToString()
	err := info.Error()
	switch is := e.ofError(err); {
	case fault.RefusesInfo(err):
		return e.untold(ask)
	case is == broken:
		if e.oneBroke {
			e.ended++
		}
		e.oneBroke = true
		return is
	case is != fits:
		return is
	case e.pool.tells():
		e.isKnown = e.askDatabase(wanted{})
	}
	if databaseIn(text) != "0" && !e.isKnown() { // mutant: lock in another database
		return useless
	}
	return e.told(c, text)
}

// ofError judges a connection by the error of a command. It fits if there is none.
func (*exam) ofError(err error) fitness {
	switch {
	case err == nil:
		return fits
	case errors.Is(err, fault.NoAnswer): // it is old
		return unfit
	case errors.Is(err, syscall.ECONNREFUSED), fault.Answered(err): // it could not be made, nor could the next one
		return useless
	default:
		return broken
	}
}

// untold judges a connection whose database the server does not report. If others use the pool, too, the connection may have
// another database selected than the shared ones. So it selects theirs, if that is known.
func (e *exam) untold(ask func(words ...string) rueidis.RedisResult) fitness {
	known := e.pool.selected.Load()
	if known == nil || *known == "" || e.pool.sole.Load() {
		return fits
	}
	return e.ofError(ask("SELECT", *known).Error())
}

// told judges a connection by the reply to CLIENT INFO, which has the age in whole seconds.
func (e *exam) told(c *dedicated, info string) fitness {
	age, untold := ageOf(info)
	known := e.pool.selected.Load()
	sure := known != nil && *known != ""
	c.told = untold == nil && sure
	if sure && databaseIn(info) != *known || untold == nil && age-time.Second > c.made.Until(e.judge.clock.Now()) {
		return unfit
	}
	return fits
}

// tells notes that the server reports the database of a connection. It reports whether a shared connection must be asked again,
// because the server did not report its database before.
func (p *pool) tells() (again bool) {
	known := p.selected.Load()
	return known != nil && *known == "" && !p.one && p.selected.CompareAndSwap(known, nil)
}

func databaseIn(info string) string { return wordAfter(info, " db=") }

func ageOf(info string) (time.Duration, error) {
	age, err := strconv.Atoi(wordAfter(info, " age="))
	return time.Duration(age) * time.Second, err
}

func wordAfter(info, name string) string {
	_, after, _ := strings.Cut(info, name)
	word, _, _ := strings.Cut(after, " ")
	return word
}
