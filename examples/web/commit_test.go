package web

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/locktest"
)

// table is a database of one row, which is a driver of its own. Its methods are called one at a time.
type table struct {
	state     string
	token     int64
	pending   func() // what the transaction will change
	executed  func() // called when the statement is executed
	committed func() // called by Commit, before anything is changed
	rolled    bool
}

func (t *table) Connect(context.Context) (driver.Conn, error) { return t, nil }
func (t *table) Driver() driver.Driver                        { return nil }
func (t *table) Prepare(string) (driver.Stmt, error)          { return nil, errors.ErrUnsupported }
func (t *table) Close() error                                 { return nil }
func (t *table) Begin() (driver.Tx, error)                    { return nil, errors.ErrUnsupported }

func (t *table) BeginTx(context.Context, driver.TxOptions) (driver.Tx, error) { return t, nil }

// ExecContext knows one statement: its arguments are the state, the token, the id, and the token again.
func (t *table) ExecContext(_ context.Context, _ string, args []driver.NamedValue) (driver.Result, error) {
	state, token := args[0].Value.(string), args[1].Value.(int64)
	if t.executed != nil {
		t.executed()
	}
	if t.token > token {
		return driver.RowsAffected(0), nil
	}
	t.pending = func() { t.state, t.token = state, token }
	return driver.RowsAffected(1), nil
}

func (t *table) Commit() error {
	if t.committed != nil {
		t.committed()
	}
	t.pending()
	return nil
}

func (t *table) Rollback() error {
	t.rolled = true
	return nil
}

func newTable(t *testing.T) (*table, *sql.DB, *locktest.Registry) {
	t.Helper()
	rows := &table{state: "paid"}
	db := sql.OpenDB(rows)
	t.Cleanup(func() { _ = db.Close() })
	return rows, db, locktest.New(t, lockregistry.WithFencing())
}

// While the transaction is committed nobody else has the lock. The next owner reads the row as it was written.
func TestCommit_BeforeTheUnlock(t *testing.T) {
	rows, db, locks := newTable(t)
	other := locks.Peer()
	rows.committed = func() {
		if _, err := other.Acquire(t.Context(), "order:42", lockregistry.NoWait()); !errors.Is(err, lockregistry.ErrTaken) {
			t.Error("another process has the lock before the commit:", err)
		}
	}
	if err := shipRow(t.Context(), locks.Registry, db, "42"); err != nil {
		t.Fatal(err)
	}
	err := other.Do(t.Context(), "order:42", func(ctx context.Context) error {
		token, _ := lockregistry.TokenFrom(ctx)
		if rows.state != "shipped" || rows.token >= int64(token) {
			t.Error("the next owner reads", rows.state, rows.token, "with token", token)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// The lock is lost within the transaction: it is rolled back, and Do tells of the loss.
func TestCommit_TheLockIsLost(t *testing.T) {
	rows, db, locks := newTable(t)
	rows.executed = func() { locks.Lose("order:42") }
	if err := shipRow(t.Context(), locks.Registry, db, "42"); !errors.Is(err, lockregistry.ErrLockLost) {
		t.Error(err)
	}
	deadline := time.After(10 * time.Second)
	for db.Stats().InUse > 0 { // database/sql rolls back in a goroutine of its own
		select {
		case <-deadline:
			t.Fatal("the transaction has not ended")
		case <-time.After(time.Millisecond):
		}
	}
	if rows.state != "paid" || !rows.rolled {
		t.Error("the row is", rows.state, "rolled back:", rows.rolled)
	}
}

// The process stood still between the check of its lock and its write: the row has a later owner's token, and refuses.
func TestCommit_Late(t *testing.T) {
	rows, db, locks := newTable(t)
	rows.executed = func() { rows.token = math.MaxInt64 }
	if err := shipRow(t.Context(), locks.Registry, db, "42"); !errors.Is(err, errLate) {
		t.Error(err)
	}
	if rows.state != "paid" || !rows.rolled {
		t.Error("the row is", rows.state, "rolled back:", rows.rolled)
	}
}

func TestCommit_WithoutFencing(t *testing.T) {
	_, db, _ := newTable(t)
	if err := shipRow(t.Context(), locktest.New(t).Registry, db, "43"); err == nil {
		t.Error("a write without a token")
	}
}
