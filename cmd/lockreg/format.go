package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/lockregistry/lockregistry/cmd/lockreg/internal/view"
	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/observe"
)

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

// heldFor returns for how long a holder has had a lock. Before its process has published that, only when the call asked is known.
// It may have waited since, for most of a long time: after a handoff that is no bound to judge by.
func heldFor(h inspect.Holder) string {
	switch {
	case !h.Granted.IsZero():
		return short(max(0, time.Since(h.Granted)))
	case h.Since.IsZero():
		return "unknown"
	case view.Young(h):
		return "≤ " + short(max(0, time.Since(h.Since)))
	}
	return "asked " + ago(h.Since)
}

// held is heldFor behind the holder's name in a sentence; empty if nothing is known.
func held(h inspect.Holder) string {
	switch {
	case h.Granted.IsZero() && h.Since.IsZero():
		return ""
	case h.Granted.IsZero() && !view.Young(h):
		return ", which asked for it " + ago(h.Since)
	}
	return " for " + heldFor(h)
}

// leaseOf returns the rest of a holder's lease, and what speaks against its being at work.
func leaseOf(h inspect.Holder) string {
	switch {
	case h.Overdue() > 0:
		return lateness(h) + ", probably dead or frozen"
	case h.Silent > 0:
		return left(h.Lease) + ", process probably dead or frozen"
	case view.Unrecorded(h):
		return left(h.Lease) + ", no record: probably dead"
	}
	return left(h.Lease)
}

// lateness returns the rest of a holder's lease, and how late its renewal is.
func lateness(h inspect.Holder) string {
	if late := h.Overdue(); late > 0 {
		return left(h.Lease) + ", renewal overdue by " + short(late)
	}
	return left(h.Lease)
}

// life returns what is known of whether a holder is at work.
func life(h inspect.Holder) string {
	renewed := short(max(0, h.Renewed-h.Lease))
	switch {
	case h.Kept:
		return "no process works under it"
	case h.Overdue() > 0:
		return "not renewed for " + renewed + ": it is probably dead or frozen"
	case h.Silent > 0:
		return "its process has shown no sign of life for " + short(h.Silent) + ", and should have: it is probably dead or frozen"
	case h.Renewed > 0 && h.Lease >= 0:
		return "granted or renewed " + renewed + " ago: its process was alive then; if it has died since, this shows within " +
			roundedUp(untilOverdue(h))
	case view.Unrecorded(h):
		text := "no record of its process: it is dead or frozen, or may not write one"
		if lease := view.FirstLease(h); lease > 0 {
			text += "; its lease is " + short(lease) + " if it was never renewed, else shorter"
		}
		return text
	case h.Label.Known():
		return "its process was alive in the last minute; if it has died since, this shows within a minute; " +
			"whether it renews its lease is not known"
	case !h.Since.IsZero():
		return "it is too new for a record of its process; one shows within " + roundedUp(view.UntilRecorded(h))
	case h.Lease > 0:
		return "whether it is alive is not known; if it is dead, its lease ends in " + short(h.Lease)
	}
	return "whether it is alive is not known"
}

// roundedUp is a duration in whole seconds, and never too short.
func roundedUp(d time.Duration) string { return short(d.Truncate(time.Second) + time.Second) }

// untilOverdue is how long it takes until a holder is overdue that has renewed its lease for the last time.
func untilOverdue(h inspect.Holder) time.Duration {
	return h.Lease - h.Renewed*2/3 + max(time.Second, h.Renewed/10)
}

// next returns who gets a lock next when a holder loses it; empty if nobody waits who is there.
func next(info inspect.Lock, h inspect.Holder) string {
	for _, w := range info.Waiters {
		if !w.Gone {
			return view.WhoWaits(w)
		}
	}
	if h.Behind == 0 {
		return ""
	}
	return fmt.Sprintf("one of %d waiting in %s, once that process notices %s", h.Behind, process(h.Label), noticing)
}

// noticing is when a process notices that it has lost a lock.
const noticing = "at its next renewal or unlock"

// lastSign returns when the process of a holder that may be at work was alive; empty if it is probably dead, or not known.
func lastSign(h inspect.Holder) string {
	switch {
	case !h.Label.Known() || h.Kept || view.Dead(h):
		return ""
	case h.Renewed > 0 && h.Lease >= 0:
		return short(max(0, h.Renewed-h.Lease)) + " ago"
	}
	return "in the last minute"
}

// nobodyWaits says so, as far as it is known: calls within a process are known from its record alone.
func nobodyWaits(info inspect.Lock) string {
	known := len(info.Holders) > 0
	for _, h := range info.Holders {
		known = known && h.Label.Known() && h.Behind == 0
	}
	if known {
		return "nobody waits"
	}
	return "nobody waits in Redis"
}

// waiting is how many calls wait for a lock, see view.Waiting, and which of them are not in the queue, or wait for nothing.
func waiting(info inspect.Lock) string {
	n, gone := view.Waiting(info), 0
	var parts []string
	add := func(behind int, who string) {
		if behind > 0 {
			parts = append(parts, fmt.Sprintf("%d in %s", behind, who))
		}
	}
	for _, w := range info.Waiters {
		if w.Gone {
			gone++
		}
	}
	if gone > 0 {
		parts = append(parts, fmt.Sprintf("%d gone", gone))
	}
	for _, h := range info.Holders {
		add(h.Behind, process(h.Label))
	}
	for _, w := range info.Waiters {
		add(w.Behind, process(w.Label))
	}
	switch {
	case gone == 1 && n == 1:
		return "1, which is gone"
	case len(parts) > 0:
		return fmt.Sprintf("%d, of them %s", n, strings.Join(parts, ", "))
	}
	return strconv.Itoa(n)
}

// process is a short name of a process.
func process(l observe.Label) string {
	switch {
	case l.Name != "":
		return l.Name
	case !l.Known():
		return view.Process(l)
	}
	return fmt.Sprintf("%s/%d", l.Host, l.PID)
}

// note returns remarks about a waiter.
func note(w inspect.Waiter) string {
	var parts []string
	if w.Gone {
		parts = append(parts, "gone: its process no longer listens")
	}
	if w.Standby {
		parts = append(parts, "stands by to lead")
	}
	if w.Behind > 0 {
		parts = append(parts, fmt.Sprintf("+%d in its process", w.Behind))
	}
	return strings.Join(parts, ", ")
}

// first is for how long the first of several calls has waited; empty if that is not known.
func first(since time.Time) string {
	if since.IsZero() {
		return ""
	}
	return ", the first for " + short(max(0, time.Since(since)))
}

// ago is how long something has been so.
func ago(since time.Time) string {
	if since.IsZero() {
		return "unknown"
	}
	return short(max(0, time.Since(since))) + " ago"
}

// left returns the rest of a lease.
func left(lease time.Duration) string {
	if lease < 0 {
		return "no end"
	}
	return short(lease)
}
