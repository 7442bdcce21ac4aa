// Ledger adds to a balance in a SQL table, under a lock whose fencing token the table checks:
//
//	go run . -redis localhost:6379 -file ledger.db -account alice -cents 100
//
// To see what that is good for, start it with -wait 1m, stop the process (Ctrl-Z), wait for longer than the lease, let another
// process add to the same account, and continue the first one (fg): its write is rejected.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/lockregistry/lockregistry"
)

func main() {
	redis := flag.String("redis", "localhost:6379", "address of the Redis server")
	file := flag.String("file", "ledger.db", "file of the SQLite database")
	account := flag.String("account", "alice", "whose balance")
	cents := flag.Int64("cents", 100, "what to add")
	lease := flag.Duration("lease", 10*time.Second, "lease of the lock")
	wait := flag.Duration("wait", 0, "how long to take between reading and writing")
	flag.Parse()
	think := func(uint64) { <-time.After(*wait) }
	if err := run(context.Background(), *redis, *file, *account, *cents, *lease, think); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("written")
}

func run(
	ctx context.Context, redis, file, account string, cents int64, lease time.Duration, think func(token uint64),
) error {
	locks, err := lockregistry.Open(ctx, "redis://"+redis, "ledger", lockregistry.WithFencing(), lockregistry.WithLease(lease))
	if err != nil {
		return err
	}
	defer func() { _ = locks.Close() }()
	ledger, err := OpenLedger(ctx, file)
	if err != nil {
		return err
	}
	defer func() { _ = ledger.Close() }()
	return add(ctx, locks, ledger, account, cents, think)
}

// add adds to a balance. Think is called between reading and writing, where the process may be stopped for any time.
func add(
	ctx context.Context, locks *lockregistry.Registry, ledger *Ledger, account string, cents int64, think func(token uint64),
) error {
	return locks.Do(ctx, account, func(held context.Context) error {
		token, _ := lockregistry.TokenFrom(held)
		balance, err := ledger.Balance(held, account)
		if err != nil {
			return err
		}
		think(token)
		// The end of the hold's context does not count: it may come between any check of it and the write. The token counts.
		return ledger.SetBalance(context.WithoutCancel(held), account, balance+cents, token)
	})
}
