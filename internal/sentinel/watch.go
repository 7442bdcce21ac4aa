package sentinel

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
)

// Watch keeps a connection to each Sentinel of a master set, until it is closed. It subscribes to their events, and asks them.
type Watch struct {
	option rueidis.ClientOption // of a connection to one Sentinel
	first  []string             // the addresses that are known from the beginning
	using  func() string        // the address of the master that is in use; empty: not known
	doubt  func()

	ctx  context.Context // ends with Close
	end  context.CancelFunc
	work sync.WaitGroup

	mu      sync.Mutex
	council council
	lines   map[string]*line // by address
	closed  bool             // no work begins any more
	against []string         // see Against

	prompter prompter
}

// line is the connection to a Sentinel.
type line struct {
	address string
	client  rueidis.Client // nil: there is none
	asking  bool           // it owes an answer, or will be asked once it is connected
	tried   chan struct{}  // closed when the first attempt to connect has succeeded or failed
	over    bool           // tried is closed
}

// New makes a watch for a master set. Option is for a connection to one Sentinel. Its DialCtxFn is set, and its InitAddress has
// the addresses of some or all Sentinels.
func New(option rueidis.ClientOption, set string) *Watch {
	w := &Watch{option: option, first: option.InitAddress, council: newCouncil(set), lines: map[string]*line{}}
	w.ctx, w.end = context.WithCancel(context.Background())
	dials := option.DialCtxFn
	w.option.DialCtxFn = func(ctx context.Context, address string, d *net.Dialer, c *tls.Config) (net.Conn, error) {
		return w.dial(ctx, dials, address, d, c)
	}
	return w
}

// Begin connects to the Sentinels in the background. It calls doubt when one of them may begin to replace the master, or has
// begun; doubt must not block. Using returns the address of the master that is in use now.
func (w *Watch) Begin(using func() string, doubt func()) {
	w.using, w.doubt = using, doubt
	w.handle(func(c *council) []act { return c.begin(w.first) })
}

// closeWait is how long Close waits. A function of the user that dials or closes need not stop when its context ends.
const closeWait = time.Second

// Close ends all connections, and waits until the goroutines have ended, or closeWait is over: a goroutine may be in a function
// of the user. A connection that such a function makes later is closed.
func (w *Watch) Close() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.end() // closes the connections, so that every wait for a Sentinel ends
	ended := make(chan struct{})
	go func() {
		w.work.Wait()
		close(ended)
	}()
	clock.Await(ended, closeWait)
}

// Absent returns the addresses of Sentinels whose events are not heard now.
func (w *Watch) Absent() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.council.absent()
}

// Against returns the addresses of the Sentinels that named another server when they were asked last.
func (w *Watch) Against() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.against
}

// handle takes an event to the council, and does what the council decides.
func (w *Watch) handle(event func(*council) []act) {
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return
	}
	acts := event(&w.council)
	doubts := false
	for _, a := range acts {
		switch a.do {
		case dial:
			if w.lines[a.address] == nil {
				w.lines[a.address] = &line{address: a.address, tried: make(chan struct{})}
			}
			w.work.Go(func() { w.follow(a.address) })
		case ask, list:
			if client := w.lines[a.address].client; client != nil { // otherwise its connection has just ended
				w.work.Go(func() { w.catchUp(a, client) })
			}
		case rest:
			time.AfterFunc(a.after, func() { w.handle(func(c *council) []act { return c.rested(a.address) }) })
		case doubt:
			doubts = true
		}
	}
	w.mu.Unlock()
	if doubts {
		w.doubt()
	}
}

// follow connects to a Sentinel, and listens until the connection ends.
func (w *Watch) follow(address string) {
	client, err := w.connect(address)
	if err == nil {
		w.connected(address, client)
		channels := map[string]bool{}
		ctx := rueidis.WithOnSubscriptionHook(w.ctx, func(s rueidis.PubSubSubscription) {
			channels[s.Channel] = true // one goroutine calls it
			if s.Kind == "subscribe" && len(channels) == len(events) {
				w.handle(func(c *council) []act { return c.subscribed(address) })
			}
		})
		_ = client.Receive(ctx, client.B().Subscribe().Channel(events...).Build(), func(m rueidis.PubSubMessage) {
			w.handle(func(c *council) []act { return c.published(address, m.Channel, m.Message, time.Now()) })
		})
	}
	w.connected(address, nil)
	if client != nil {
		client.Close()
	}
	w.handle(func(c *council) []act { return c.broke(address) })
}

// connect connects to a Sentinel. Where RESP3 is refused, by the Sentinel or a proxy, the connection speaks RESP2.
func (w *Watch) connect(address string) (rueidis.Client, error) {
	o := w.option
	o.InitAddress = []string{address}
	client, err := rueidis.NewClient(o)
	if err == nil || o.AlwaysRESP2 || !fault.IsNoRESP3(err) {
		return client, err
	}
	if client != nil { // as with ForceSingleClient
		client.Close()
	}
	o.AlwaysRESP2 = true
	return rueidis.NewClient(o)
}

// connected notes the connection to a Sentinel; nil: there is none.
func (w *Watch) connected(address string, client rueidis.Client) {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.lines[address]
	if l.client = client; !l.over {
		l.over = true
		close(l.tried)
	}
}

// catchUp asks a Sentinel for what it published before the subscription, or only for the others.
func (w *Watch) catchUp(what act, client rueidis.Client) {
	a, err := inquire(w.ctx, what.address, client, w.council.set)
	if err != nil {
		return
	}
	using := w.using()
	w.handle(func(c *council) []act {
		if what.do == list { // mutant: known word doubted
			return c.learnFrom(&a, using)
		}
		return c.answered(&a, using)
	})
}

// Ask asks all Sentinels that are connected, or for which the first attempt to connect is under way, about the server at an
// address, which a client uses. It waits for limit at most. Once a majority has answered, it waits for the others for rest at
// most.
//
// At most one question to each Sentinel is under way. So a Sentinel that owes an earlier answer is not asked again. That answer
// does not count: it was asked for too early.
func (w *Watch) Ask(address string, limit, rest time.Duration) Verdict {
	asked := time.Now()
	answers := w.gather(address, asked, limit, rest)
	w.prompter.prompt(successor(address, answers))
	w.mu.Lock()
	defer w.mu.Unlock()
	w.against = against(address, answers)
	return w.council.judge(address, answers, asked, time.Now())
}

func (w *Watch) judge(address string, answers []Answer, asked time.Time) Verdict {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.council.judge(address, answers, asked, time.Now())
}

func (w *Watch) gather(address string, asked time.Time, limit, rest time.Duration) (answers []Answer) {
	ctx, end := context.WithCancel(w.ctx)
	defer end()
	over := time.NewTimer(limit)
	defer over.Stop()
	said, waits := w.askAll(ctx)
	known := false
	for range waits {
		select {
		case a := <-said:
			if a == nil {
				continue
			}
			answers = append(answers, *a)
			w.handle(func(c *council) []act { return c.learnFrom(a, address) })
			if v := w.judge(address, answers, asked); !known && v != Unknown && v != Elected {
				known = true
				over.Reset(min(rest, time.Until(asked.Add(limit))))
			}
		case <-over.C:
			return answers
		case <-ctx.Done():
			return answers
		}
	}
	return answers
}

// askAll asks the Sentinels. It returns the channel on which the answers come, and how many come; a missing one is nil.
func (w *Watch) askAll(ctx context.Context) (said <-chan *Answer, asked int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	answers := make(chan *Answer, len(w.lines))
	for _, l := range w.lines {
		if w.closed || l.asking || l.over && l.client == nil {
			continue
		}
		l.asking = true
		asked++
		w.work.Go(func() { answers <- w.askOne(ctx, l) })
	}
	return answers, asked
}

func (w *Watch) askOne(ctx context.Context, l *line) *Answer {
	select {
	case <-l.tried:
	case <-ctx.Done():
	}
	w.mu.Lock()
	client := l.client
	w.mu.Unlock()
	var answer *Answer
	if client != nil {
		// Not with ctx: when that ends, rueidis would close the connection on which the events come.
		if a, err := inquire(w.ctx, l.address, client, w.council.set); err == nil {
			answer = &a
		}
	}
	w.mu.Lock()
	l.asking = false
	w.mu.Unlock()
	return answer
}

// inquire asks a Sentinel about a master set, and for the others.
func inquire(ctx context.Context, address string, client rueidis.Client, set string) (a Answer, err error) {
	b := client.B()
	replies := client.DoMulti(ctx, b.Arbitrary("SENTINEL", "MASTER", set).Build(),
		b.SentinelGetMasterAddrByName().Master(set).Build(), b.SentinelSentinels().Master(set).Build(),
		b.Arbitrary("SENTINEL", "MYID").Build())
	about, err := replies[0].AsStrMap()
	if err != nil {
		return a, err
	}
	named, err := replies[1].AsStrSlice()
	if err != nil {
		return a, err
	}
	known, err := replies[2].ToArray()
	if err != nil {
		return a, err
	}
	a = Answer{
		At: address, Others: len(known),
		Watches: net.JoinHostPort(about["ip"], about["port"]), Flags: strings.Split(about["flags"], ","),
	}
	for _, one := range known {
		if s, err := one.AsStrMap(); err == nil && s["port"] != "" {
			a.Fellows = append(a.Fellows, peer{net.JoinHostPort(s["ip"], s["port"]), s["runid"]})
		}
	}
	a.Epoch, _ = strconv.ParseInt(about["config-epoch"], 10, 64)
	if len(named) == 2 {
		a.Names = net.JoinHostPort(named[0], named[1])
	}
	if a.Who, err = replies[3].ToString(); err != nil { // before Redis 6.2, or where the user may not
		a.Nameless = true
		a.Who, err = runOf(ctx, client)
	}
	return a, err
}

// errNameless: without an id, one Sentinel at two addresses cannot be told from two Sentinels. So a Sentinel without an id
// counts as one that does not answer.
var errNameless = errors.New("it does not say which Sentinel it is")

// runOf returns the id of a Sentinel's process. It shows whether two addresses lead to the same Sentinel.
func runOf(ctx context.Context, client rueidis.Client) (id string, err error) {
	info, err := client.Do(ctx, client.B().Info().Section("server").Build()).ToString()
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(info) {
		if id, found := strings.CutPrefix(line, "run_id:"); found && strings.TrimSpace(id) != "" {
			return strings.TrimSpace(id), nil
		}
	}
	return "", errNameless
}

// dial makes a connection that is closed when the watch is.
func (w *Watch) dial(
	ctx context.Context, dial Dial, address string, d *net.Dialer, c *tls.Config,
) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(w.ctx, cancel)()
	conn, err := dial(ctx, address, d, c)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(w.ctx, func() { _ = conn.Close() })
	return &wrapped{conn, func() { stop() }}, nil
}
