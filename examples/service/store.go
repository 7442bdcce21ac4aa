package main

import (
	"context"
	"strconv"

	"github.com/redis/rueidis"
)

// redisStore keeps the service's numbers in Redis. It reads and writes, and never does both in one command: without locks updates
// would be lost.
type redisStore struct{ client rueidis.Client }

func (r redisStore) Get(ctx context.Context, name string) (int, error) {
	n, err := r.client.Do(ctx, r.client.B().Get().Key("shop:"+name).Build()).AsInt64()
	if rueidis.IsRedisNil(err) {
		return 0, nil
	}
	return int(n), err
}

func (r redisStore) Set(ctx context.Context, name string, value int) error {
	return r.client.Do(ctx, r.client.B().Set().Key("shop:"+name).Value(strconv.Itoa(value)).Build()).Error()
}
