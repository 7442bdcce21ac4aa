package web

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/lockregistry/lockregistry"
)

// errLate: a later owner of the lock has written the row.
var errLate = errors.New("another owner has had the lock since")

// shipRow changes a row in a transaction that begins when the lock is held, and is committed before it is released.
func shipRow(ctx context.Context, locks *lockregistry.Registry, db *sql.DB, id string) error {
	return locks.Do(ctx, "order:"+id, func(held context.Context) error {
		token, fenced := lockregistry.TokenFrom(held)
		if !fenced {
			return errors.New("the registry lacks WithFencing")
		}
		tx, err := db.BeginTx(held, nil) // is rolled back when the lock is lost
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }() // does nothing after Commit
		result, err := tx.ExecContext(held, "UPDATE orders SET state = ?, token = ? WHERE id = ? AND token <= ?",
			"shipped", int64(token), id, int64(token)) //nolint:gosec // no token has 63 bits
		if err != nil {
			return err
		}
		if rows, err := result.RowsAffected(); err != nil || rows == 0 {
			return errors.Join(err, fmt.Errorf("%s: %w", id, errLate))
		}
		return tx.Commit() // then Do unlocks: the next owner reads what this one has written
	})
}
