package main

import (
	"context"
	"sync"
	"time"
)

// memory is a Store in memory that takes its time, as a database does, and counts how often it is asked.
type memory struct {
	delay time.Duration

	mu       sync.Mutex
	products map[int64]Product
	loads    int
}

func newMemory(delay time.Duration, products ...Product) *memory {
	m := &memory{delay: delay, products: map[int64]Product{}}
	for _, p := range products {
		m.products[p.ID] = p
	}
	return m
}

func (m *memory) Load(ctx context.Context, id int64) (Product, error) {
	m.mu.Lock()
	p, ok := m.products[id]
	m.loads++
	m.mu.Unlock()
	if err := m.wait(ctx); err != nil {
		return Product{}, err
	}
	if !ok {
		return Product{}, ErrNoProduct
	}
	return p, nil
}

func (m *memory) Save(ctx context.Context, p Product) error {
	if err := m.wait(ctx); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.products[p.ID] = p
	return nil
}

func (m *memory) loaded() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.loads
}

func (m *memory) wait(ctx context.Context) error {
	select {
	case <-time.After(m.delay):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
