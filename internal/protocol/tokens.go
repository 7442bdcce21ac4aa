package protocol

import (
	"fmt"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/fault"
)

// Tokens reads the reply of a script that obtains n locks: their tokens, or which lock is taken, with [fault.WrongType] if its
// key is not such a lock.
func Tokens(result rueidis.RedisResult, n int) (tokens []uint64, taken int, err error) {
	message, err := result.ToMessage()
	if err != nil {
		return nil, 0, err
	}
	if !message.IsArray() {
		at, err := message.AsInt64()
		if at < 0 {
			return nil, int(-at), fault.WrongType
		}
		return nil, int(max(at, 1)), err
	}
	values, err := message.ToArray()
	for i := range values {
		token, failed := values[i].AsUint64()
		tokens, err = append(tokens, token), fault.Join(err, failed)
	}
	if err == nil && len(tokens) != n {
		err = fmt.Errorf("the reply has %d tokens, not %d", len(tokens), n)
	}
	return tokens, 0, err
}
