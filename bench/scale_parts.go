package main

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/lockregistry/lockregistry/internal/peer"
)

// soon is time enough for all workers to have read a request.
const soon = 200 * time.Millisecond

// onePath has all members wait for one path, and then have it one after the other.
func (w *fleetWork) onePath() error {
	if err := errors.Join(w.guard(hotPath), w.try(hotPath, time.Now())); err != nil {
		return err
	}
	if err := w.watch("all wait for one path"); err != nil {
		return err
	}
	began := time.Now()
	if err := w.free(); err != nil {
		return err
	}
	return w.served("the one path is released", began)
}

// ownPaths has each member wait for a path of its own, until FLUSHALL frees all of them at once.
func (w *fleetWork) ownPaths() error {
	if err := errors.Join(w.guard("own"), w.try("own", time.Now())); err != nil {
		return err
	}
	if err := w.watch("each waits for its own path"); err != nil {
		return err
	}
	began := time.Now()
	if err := w.flush(); err != nil {
		return err
	}
	return errors.Join(w.served("FLUSHALL, each waits for its own path", began), w.free())
}

// flush empties all masters.
func (w *fleetWork) flush() error {
	for _, s := range w.servers.data {
		if !s.Running() {
			continue
		}
		role, err := s.Do("ROLE")
		if err == nil && strings.HasPrefix(role, "master") {
			_, err = s.Do("FLUSHALL")
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// storm has all members take and release the hot path over and over.
func (w *fleetWork) storm() error {
	place, file, err := newMeeting()
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(file) }()
	place.reset()
	from := time.Now().Add(2 * soon)
	to := from.Add(w.pace.storm)
	type looked struct {
		before, after []fleetLook
		err           error
	}
	looks := make(chan looked, 1)
	go func() {
		var l looked
		var err error
		time.Sleep(time.Until(from))
		l.before, l.err = look(w.servers.data)
		time.Sleep(time.Until(to))
		l.after, err = look(w.servers.data)
		l.err = errors.Join(l.err, err)
		looks <- l
	}()
	replies, err := w.order(doStorm, func(int) peer.Fields {
		return peer.Fields{
			"from": strconv.FormatInt(from.UnixMicro(), 10), "to": strconv.FormatInt(to.UnixMicro(), 10), "meeting": file,
		}
	})
	l := <-looks
	if err := errors.Join(err, l.err); err != nil {
		return err
	}
	const part = "all take one path, over and over"
	var took []float64
	sections, turns := 0, 0
	for _, reply := range replies {
		var some handoffTimes
		n, err1 := strconv.Atoi(reply["sections"])
		m, err2 := strconv.Atoi(reply["members"])
		if err := errors.Join(err1, err2, peer.Unpack(reply["took"], &some)); err != nil {
			return err
		}
		sections, turns = sections+n, turns+m
		for _, d := range some {
			took = append(took, float64(d))
		}
	}
	w.add(part, "sections", perSecond, float64(sections)/w.pace.storm.Seconds())
	w.add(part, "handoff p50", nanoseconds, median(took))
	w.add(part, "handoff p99", nanoseconds, quantile(took, 0.99))
	w.add(part, "registries that had a turn", whole, float64(turns))
	w.busiest(part, l.before, l.after, w.pace.storm.Seconds())
	return nil
}

// failover takes the server of the hot path away, and has each member ask for its own path at that moment.
func (w *fleetWork) failover() error {
	time.Sleep(w.pace.settle(w.members)) // until all calls that gave up in the storm are gone
	part := map[string]string{
		onSingle: "the server restarts, empty", onSentinel: "the master is killed", onCluster: "one of three masters is killed",
	}[w.deployment]
	came := watchArrivals(w.servers.data)
	if err := w.try("own", time.Now().Add(soon)); err != nil {
		return err
	}
	time.Sleep(soon / 2)
	failed, again := w.servers.fail()
	w.add(part, "another serves after", nanoseconds, float64(again.Sub(failed)))
	err := w.served(part, again)
	time.Sleep(w.pace.settle(0)) // for members that connect later
	all, most, took := came.end()
	w.add(part, "connections made", whole, all)
	w.add(part, "the most of them in a second", whole, most)
	w.add(part, "98 % of them within", nanoseconds, float64(took))
	looks, err2 := look(w.servers.data)
	w.add(part, "connections refused", whole, total(looks, func(l fleetLook) float64 { return l.refused }))
	return errors.Join(err, err2)
}

// afterFlush empties the server while all members wait for one path.
func (w *fleetWork) afterFlush() error {
	if err := errors.Join(w.guard(hotPath), w.try(hotPath, time.Now())); err != nil {
		return err
	}
	time.Sleep(w.pace.settle(w.members))
	began := time.Now()
	if err := w.flush(); err != nil {
		return err
	}
	if err := w.served("FLUSHALL, all wait for one path", began); err != nil {
		return err
	}
	looks, err := look(w.servers.data)
	if over := total(looks, func(l fleetLook) float64 { return l.overflowing }); over > 0 {
		w.add("the fleet", "connections closed for full output buffers", whole, over)
	}
	return err
}
