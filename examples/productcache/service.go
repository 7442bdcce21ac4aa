package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry"
)

// Product is what the service keeps.
type Product struct {
	ID    int64  `json:"id"`
	Name  string `json:"name"`
	Cents int64  `json:"cents"`
}

// ErrNoProduct: there is no product with this id.
var ErrNoProduct = errors.New("no such product")

// Store is where products live for good: the database. Load returns ErrNoProduct for what it does not have.
type Store interface {
	Load(ctx context.Context, id int64) (Product, error)
	Save(ctx context.Context, p Product) error
}

// How long a product stays in the cache. Products that were cached together must not expire together, or all of them would
// be loaded at once, so a random part is added. That there is no such product is remembered too, but not for long.
const (
	cached       = 24 * time.Hour
	cachedSpread = 5 * time.Hour
	absent       = 60 * time.Second
	absentSpread = 30 * time.Second
)

// noProduct is cached for a product that does not exist, so that asking for it again and again does not reach the store.
const noProduct = "{}"

// Service reads and writes products, with a cache in Redis in front of the store. Many processes may run it.
type Service struct {
	redis rueidis.Client
	locks *lockregistry.Registry
	store Store
}

// Get returns a product, from the cache if it is there.
func (s *Service) Get(ctx context.Context, id int64) (Product, error) {
	p, found, err := s.look(ctx, id)
	if found || err != nil {
		return p, err
	}
	// A product that many ask for at once and that is not cached is loaded once: the others wait for the lock, and find it
	// in the cache when they look a second time.
	err = s.locks.Do(ctx, fmt.Sprintf("rebuild:%d", id), func(ctx context.Context) error {
		if p, found, err = s.look(ctx, id); found || err != nil {
			return err
		}
		p, err = s.rebuild(ctx, id)
		return err
	})
	return p, err
}

// rebuild loads a product into the cache. It holds the product's read lock from before it loads until after it has cached,
// so that no update comes between and is then overwritten with the older product.
func (s *Service) rebuild(ctx context.Context, id int64) (p Product, err error) {
	reader := s.locks.ReadWrite(lockPath(id)).Reader()
	if err := reader.Lock(ctx); err != nil {
		return Product{}, err
	}
	defer func() { err = errors.Join(err, reader.Unlock(context.WithoutCancel(ctx))) }()
	ctx = reader.Context(ctx) // ends when the lock is lost

	p, err = s.store.Load(ctx, id)
	switch {
	case errors.Is(err, ErrNoProduct):
		return Product{}, errors.Join(err, s.cache(ctx, id, noProduct, absent, absentSpread))
	case err != nil:
		return Product{}, err
	}
	return p, s.cacheProduct(ctx, p)
}

// Put stores a product, new or changed, and caches it. It holds the product's write lock, so that nobody else sees the store and
// the cache differ, and two updates cannot end in different orders here and there. The old product leaves the cache first:
// otherwise a crash, a lost lock or a failure of Redis after the save would leave it there, for as long as it is asked for.
//
// What is left is what is carried out late. A save may be, after the call has given up or lost its lock, when another process has
// cached the old product again: the store must reject it, as in examples/ledger. So may a write to the cache, which takes no
// fencing token here: an old product then stays for as long as it is asked for.
func (s *Service) Put(ctx context.Context, p Product) (err error) {
	writer := s.locks.ReadWrite(lockPath(p.ID)).Writer()
	if err := writer.Lock(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, writer.Unlock(context.WithoutCancel(ctx))) }()
	ctx = writer.Context(ctx)

	if err := s.redis.Do(ctx, s.redis.B().Del().Key(cacheKey(p.ID)).Build()).Error(); err != nil {
		return fmt.Errorf("removing product %d from the cache: %w", p.ID, err)
	}
	if err := s.store.Save(ctx, p); err != nil {
		return err
	}
	return s.cacheProduct(ctx, p)
}

// look looks into the cache. Found says that the answer is there, which may be ErrNoProduct.
func (s *Service) look(ctx context.Context, id int64) (p Product, found bool, err error) {
	text, err := s.redis.Do(ctx, s.redis.B().Get().Key(cacheKey(id)).Build()).ToString()
	switch {
	case rueidis.IsRedisNil(err):
		return Product{}, false, nil
	case err != nil:
		return Product{}, false, fmt.Errorf("looking for product %d in the cache: %w", id, err)
	case text == noProduct:
		return Product{}, true, ErrNoProduct
	}
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		return Product{}, false, fmt.Errorf("product %d in the cache: %w", id, err)
	}
	// What is asked for stays.
	expire := s.redis.B().Expire().Key(cacheKey(id)).Seconds(seconds(cached, cachedSpread)).Build()
	return p, true, s.redis.Do(ctx, expire).Error()
}

func (s *Service) cacheProduct(ctx context.Context, p Product) error {
	text, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return s.cache(ctx, p.ID, string(text), cached, cachedSpread)
}

func (s *Service) cache(ctx context.Context, id int64, text string, base, spread time.Duration) error {
	set := s.redis.B().Set().Key(cacheKey(id)).Value(text).ExSeconds(seconds(base, spread)).Build()
	return s.redis.Do(ctx, set).Error()
}

// seconds is a time to live with a random part.
func seconds(base, spread time.Duration) int64 {
	return int64((base + rand.N(spread)).Seconds()) //nolint:gosec // nobody gains from guessing it
}

func cacheKey(id int64) string { return "product:" + strconv.FormatInt(id, 10) }

func lockPath(id int64) string { return "update:" + strconv.FormatInt(id, 10) }
