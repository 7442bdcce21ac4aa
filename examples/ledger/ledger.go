package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	_ "modernc.org/sqlite" // the driver sqlite
)

// Ledger is a table of balances. Each row keeps the largest fencing token with which it was written.
type Ledger struct{ db *sql.DB }

// ErrLate: the row was written with a larger token since. The writer no longer holds the lock, whatever it believes.
var ErrLate = errors.New("another owner has had the lock since")

// OpenLedger opens the table in a file, and creates it if necessary.
func OpenLedger(ctx context.Context, file string) (*Ledger, error) {
	db, err := sql.Open("sqlite", file+"?_pragma=busy_timeout(5000)")
	if err != nil {
		return nil, err
	}
	_, err = db.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS balances (
		account TEXT PRIMARY KEY,
		cents   INTEGER NOT NULL,
		token   INTEGER NOT NULL
	)`)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &Ledger{db}, nil
}

// Close closes the table.
func (l *Ledger) Close() error { return l.db.Close() }

// Balance returns the balance of an account; 0 if it was never written.
func (l *Ledger) Balance(ctx context.Context, account string) (cents int64, err error) {
	err = l.db.QueryRowContext(ctx, `SELECT cents FROM balances WHERE account = ?`, account).Scan(&cents)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil
	}
	return cents, err
}

// SetBalance writes the balance of an account, unless it was written with a larger token: then it changes nothing and returns
// ErrLate. The comparison and the write are one statement, so nothing comes between them.
func (l *Ledger) SetBalance(ctx context.Context, account string, cents int64, token uint64) error {
	if token == 0 {
		return errors.New("a write without a fencing token")
	}
	result, err := l.db.ExecContext(ctx, `INSERT INTO balances (account, cents, token) VALUES (?, ?, ?)
		ON CONFLICT (account) DO UPDATE SET cents = excluded.cents, token = excluded.token
		WHERE excluded.token >= balances.token`, account, cents, int64(token)) //nolint:gosec // no token has 63 bits
	if err != nil {
		return err
	}
	written, err := result.RowsAffected()
	if err == nil && written == 0 {
		err = fmt.Errorf("%s: %w", account, ErrLate)
	}
	return err
}
