package clock_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/clock"
)

// A difference counts by what is certain of it: what the question itself took may be the whole of it.
func TestSkew(t *testing.T) {
	for name, c := range map[string]struct {
		apart, trip time.Duration
		leases      []time.Duration
		reported    time.Duration // 0: nothing is reported
	}{
		"small":                  {9 * time.Second, 0, []time.Duration{30 * time.Second}, 0},
		"ahead":                  {10 * time.Second, 0, []time.Duration{30 * time.Second}, 10 * time.Second},
		"behind":                 {-10 * time.Second, 0, []time.Duration{30 * time.Second}, -10 * time.Second},
		"within the trip":        {10 * time.Second, time.Second, []time.Duration{30 * time.Second}, 0},
		"a shorter lease later":  {5 * time.Second, 0, []time.Duration{30 * time.Second, 15 * time.Second}, 5 * time.Second},
		"a longer lease, before": {5 * time.Second, 0, []time.Duration{15 * time.Second, 30 * time.Second}, 5 * time.Second},
		"equal":                  {0, 0, []time.Duration{time.Millisecond}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var reports []time.Duration
				asked := 0
				s := clock.Skew{
					Ask: func(string) (time.Time, bool, error) {
						asked++
						server := time.Now().Add(c.apart) // the answer is under way for the whole trip
						<-time.After(c.trip)
						return server, false, nil
					},
					Report: func(_ string, ahead time.Duration) { reports = append(reports, ahead) },
				}
				for _, lease := range c.leases {
					s.Uses("k", lease)
					s.Wait()
					s.Uses("k", lease)
				}
				s.Wait()
				require.Equal(t, 1, asked)
				if c.reported == 0 {
					require.Empty(t, reports)
				} else {
					require.Equal(t, []time.Duration{c.reported}, reports)
				}
			})
		})
	}
}

func TestSkew_AsksAgainOnlyAfterWhatMayPass(t *testing.T) {
	for _, again := range []bool{true, false} {
		asked := 0
		s := clock.Skew{Ask: func(string) (time.Time, bool, error) {
			asked++
			return time.Time{}, again, errors.New("any")
		}}
		for range 3 {
			s.Uses("k", time.Minute)
			s.Wait()
		}
		require.Equal(t, map[bool]int{true: 3, false: 1}[again], asked)
	}
}

func TestSkew_AsksNobodyOnceClosed(t *testing.T) {
	s := clock.Skew{Ask: func(string) (time.Time, bool, error) {
		t.Error("it asks")
		return time.Time{}, false, nil
	}}
	s.Close()
	s.Uses("k", time.Minute)
	s.Wait()
}
