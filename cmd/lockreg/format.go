package main

import (
	"fmt"
	"time"

	"github.com/lockregistry/lockregistry"
)

// who is a holder for people.
func who(h lockregistry.HolderInfo) string {
	if h.Kept {
		return "nobody: kept for a while after its release"
	}
	return h.Label.String()
}

// short is a duration with as much precision as people need.
func short(d time.Duration) string {
	switch {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", d/time.Minute, d%time.Minute/time.Second)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%02dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%d days", d/(24*time.Hour))
}

// ago is how long something has been so.
func ago(since time.Time) string {
	if since.IsZero() {
		return "unknown"
	}
	return short(max(0, time.Since(since))) + " ago"
}

// left is what a lease has left.
func left(lease time.Duration) string {
	if lease < 0 {
		return "no end"
	}
	return short(lease)
}
