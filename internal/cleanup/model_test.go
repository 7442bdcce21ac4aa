package cleanup

import (
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// redis models a server for removals: each path has the number of its holder, or 0 when it is free.
type redis struct {
	mu      sync.Mutex
	holders map[string]int
	down    bool
	valid   map[string]int // the number of the hold that the process has; its removal would be wrong
	wrong   []string
}

func (r *redis) grant(key string, number int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.holders[key] < number { // a newer one takes over what its own registry has left
		r.holders[key] = number
	}
}

// remove executes a removal, perhaps late, and reports whether it was executed.
func (r *redis) remove(a Try) error {
	number, err := strconv.Atoi(strings.TrimPrefix(a.Value, "a:"))
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.down || err != nil {
		return errSilent
	}
	if v := r.valid[a.Key]; v != 0 && v <= number {
		r.wrong = append(r.wrong, a.Key+" "+a.Value)
	}
	if r.holders[a.Key] <= number {
		r.holders[a.Key] = 0
	}
	return nil
}

// Whatever calls leave behind, and however the server fails, in the end nothing is left, each local half was freed once, and no
// removal has touched a valid hold.
func TestModel_NothingIsLeft(t *testing.T) {
	for seed := range uint64(8) {
		serve(t, func(t *testing.T, s *server) {
			random := rand.New(rand.NewPCG(seed, 7))
			r := &redis{holders: map[string]int{}, valid: map[string]int{}}
			s.answers(func(a Try) error {
				<-time.After(time.Duration(len(a.Key)) * time.Millisecond)
				return r.remove(a)
			})
			var grants sync.WaitGroup
			number, freed, wanted := 0, 0, 0
			busy := map[string]bool{} // the local half is taken
			for range 200 {
				<-time.After(time.Duration(random.IntN(2000)) * time.Millisecond)
				r.mu.Lock()
				r.down = random.IntN(3) == 0
				key, up := "orders:"+strconv.Itoa(random.IntN(3)), !r.down
				taken := busy[key]
				r.mu.Unlock()
				if up && random.IntN(2) == 0 {
					s.RetryNow()
				}
				if taken {
					continue
				}
				number++
				n := number
				switch random.IntN(3) {
				case 0: // a call gives up, and its grant arrives at some time, or never
					arrives := time.After(time.Duration(random.IntN(30)) * time.Second)
					grants.Go(func() {
						<-arrives
						r.grant(key, n)
					})
					require.True(t, s.Remove(s.late(key[len("orders:"):], n), nil))
				case 1: // a hold ends, and its release was not answered
					r.grant(key, n)
					r.mu.Lock()
					busy[key] = true
					r.mu.Unlock()
					wanted++
					require.True(t, s.Remove(s.removal(key[len("orders:"):], n), func(bool) {
						r.mu.Lock()
						defer r.mu.Unlock()
						freed++
						busy[key] = false
					}))
				case 2: // a hold is valid for a while
					r.grant(key, n)
					r.mu.Lock()
					r.valid[key] = n
					r.mu.Unlock()
					<-time.After(time.Duration(random.IntN(500)) * time.Millisecond)
					r.mu.Lock()
					r.valid[key], r.holders[key] = 0, 0
					r.mu.Unlock()
				}
			}
			r.mu.Lock()
			r.down = false
			r.mu.Unlock()
			grants.Wait()
			<-time.After(3 * time.Minute)
			synctest.Wait()
			r.mu.Lock()
			defer r.mu.Unlock()
			require.Empty(t, r.wrong)
			require.Equal(t, wanted, freed)
			require.Zero(t, s.Len())
			for key, holder := range r.holders {
				require.Zero(t, holder, "%s, seed %d", key, seed)
			}
		})
	}
}
