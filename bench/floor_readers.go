package main

import (
	"context"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/redis/rueidis"
)

// The floor of a read lock: a hash with a field per reader, one script to enter and one to leave.
var (
	floorEnter = rueidis.NewLuaScript(`if redis.call('HGET', KEYS[1], 'mode') == 'write' then return redis.call('PTTL', KEYS[1]) end
redis.call('HSET', KEYS[1], 'mode', 'read', ARGV[1], 1)
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return -1`)
	floorLeave = rueidis.NewLuaScript(`if redis.call('HDEL', KEYS[1], ARGV[1]) == 0 then return 0 end
if redis.call('HLEN', KEYS[1]) == 1 then redis.call('DEL', KEYS[1]) end
return 1`)
)

type floorReaders struct {
	client rueidis.Client
	id     string
	lease  string
	next   atomic.Int64
}

func openFloorReaders(o opening) (*floorReaders, error) {
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{o.addr}})
	if err != nil {
		return nil, err
	}
	return &floorReaders{client: client, id: uuid.NewString(), lease: strconv.FormatInt(int64(defaultLease/time.Millisecond), 10)}, nil
}

func (f *floorReaders) session(path string) session {
	reader := f.id + ":" + strconv.FormatInt(f.next.Add(1), 10)
	return &floorReader{f: f, keys: []string{f.key(path)}, enterArgs: []string{reader, f.lease}, leaveArgs: []string{reader}}
}

func (f *floorReaders) key(path string) string { return "floor-readers:" + path }

func (f *floorReaders) close() { f.client.Close() }

type floorReader struct {
	f                          *floorReaders
	keys, enterArgs, leaveArgs []string
}

func (r *floorReader) lock(ctx context.Context) error {
	return floorEnter.Exec(ctx, r.f.client, r.keys, r.enterArgs).Error()
}

func (r *floorReader) unlock(ctx context.Context) error {
	return floorRemoved(floorLeave.Exec(ctx, r.f.client, r.keys, r.leaveArgs))
}
