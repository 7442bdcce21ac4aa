package gopeer

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry"

	"github.com/lockregistry/lockregistry/internal/peer"
)

// sections runs a section that only the lock makes safe, n times, each time under the lock, and stops at the first failure. The
// reply says how long it waited for the lock at most.
func sections(ctx context.Context, r *registry, lock *lockregistry.Lock, request peer.Fields) (peer.Fields, error) {
	n, err := strconv.Atoi(request["n"])
	if err != nil {
		return nil, fmt.Errorf("no number of sections: %w", err)
	}
	protected := data{redis: r.plain, name: request["counter"], as: request["as"]}
	section := map[string]func(context.Context) error{
		"count":  protected.count,
		"write":  protected.write,
		"verify": protected.verify,
	}[request["do"]]
	longest := time.Duration(0)
	for range n {
		began := time.Now()
		if err := answer(func() error { return lock.Lock(ctx) }); err != nil {
			return nil, err
		}
		longest = max(longest, time.Since(began))
		if err := errors.Join(section(ctx), unlock(ctx, lock)); err != nil {
			return nil, err
		}
	}
	return peer.Fields{"turns": strconv.Itoa(protected.turns), "longest": peer.InMillis(longest)}, nil
}

// share runs sections for a while, one after another, each under the next kind of lock. The reply says how many, and how long
// it waited for a lock at most.
func share(ctx context.Context, r *registry, request peer.Fields) (peer.Fields, error) {
	var locks []*lockregistry.Lock
	for kind := range strings.FieldsSeq(request["kinds"]) {
		lock, err := ofKind(r, request["path"], kind)
		if err != nil {
			return nil, err
		}
		locks = append(locks, lock)
	}
	lasts, _, unread := request.Millis("for")
	work, _, err := request.Millis("work")
	if err := errors.Join(unread, err); err != nil || len(locks) == 0 {
		return nil, fmt.Errorf("no kinds of lock, or no time: %w", err)
	}
	until := time.Now().Add(lasts)
	sections, longest := 0, time.Duration(0)
	for ; time.Now().Before(until); sections++ {
		lock, began := locks[sections%len(locks)], time.Now()
		if err := answer(func() error { return lock.Lock(ctx) }); err != nil {
			return nil, err
		}
		longest = max(longest, time.Since(began))
		<-time.After(work)
		if err := unlock(ctx, lock); err != nil {
			return nil, err
		}
	}
	return peer.Fields{"sections": strconv.Itoa(sections), "longest": peer.InMillis(longest)}, nil
}

// data is the data that a lock protects.
type data struct {
	redis rueidis.Client
	name  string
	as    string // the name of the writer
	turns int    // how often others had written since this writer's previous section
	last  string // what the last section left or saw, if that matters
}

// count adds one to a number, in a way that loses updates unless the lock excludes others. The writer's name is stored beside
// the number.
func (d *data) count(ctx context.Context) error {
	text, err := d.get(ctx, d.name, "0 nobody")
	if err != nil {
		return err
	}
	number, writer, _ := strings.Cut(text, " ")
	value, err := strconv.Atoi(number)
	if err != nil {
		return err
	}
	if writer != d.as {
		d.turns++
	}
	return d.set(ctx, d.name, strconv.Itoa(value+1)+" "+d.as)
}

// write changes two numbers that are equal whenever nobody writes.
func (d *data) write(ctx context.Context) error {
	text, err := d.get(ctx, d.name+":first", "0")
	if err != nil {
		return err
	}
	value, err := strconv.Atoi(text)
	if err != nil {
		return err
	}
	if text != d.last {
		d.turns++
	}
	next := strconv.Itoa(value + 1)
	d.last = next
	if err := d.set(ctx, d.name+":first", next); err != nil {
		return err
	}
	return d.set(ctx, d.name+":second", next)
}

// verify fails when a writer changed either number while this reader looked.
func (d *data) verify(ctx context.Context) error {
	var seen [3]string
	for i, key := range []string{d.name + ":first", d.name + ":second", d.name + ":first"} {
		text, err := d.get(ctx, key, "0")
		if err != nil {
			return err
		}
		seen[i] = text
	}
	if seen[0] != seen[1] || seen[1] != seen[2] {
		return fmt.Errorf("a reader saw %v", seen)
	}
	if seen[0] != d.last {
		d.turns++
		d.last = seen[0]
	}
	return nil
}

func (d *data) get(ctx context.Context, key, absent string) (string, error) {
	text, err := d.redis.Do(ctx, d.redis.B().Get().Key(key).Build()).ToString()
	if rueidis.IsRedisNil(err) {
		return absent, nil
	}
	return text, err
}

func (d *data) set(ctx context.Context, key, text string) error {
	return d.redis.Do(ctx, d.redis.B().Set().Key(key).Value(text).Build()).Error()
}
