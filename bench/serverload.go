package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/rueidis"
)

// observer reads the server's figures over its own connection.
type observer struct {
	client rueidis.Client
	looks  float64 // seconds of the server's time that two looks take by themselves
}

func observe(ctx context.Context, addr string) (observer, error) {
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true, PipelineMultiplex: -1})
	if err != nil {
		return observer{}, err
	}
	o := observer{client: client}
	var looks []float64
	for range 100 {
		before, err := o.load(ctx)
		if err != nil {
			return o, err
		}
		after, err := o.load(ctx)
		if err != nil {
			return o, err
		}
		looks = append(looks, after.cpu-before.cpu)
	}
	o.looks = median(looks)
	return o, nil
}

// between returns the server's load between two looks, without the cost of the looks.
func (o observer) between(before, after serverLoad) serverLoad {
	load := after.since(before)
	load.cpu = max(0, load.cpu-o.looks)
	return load
}

// serverLoad is the work of the server since it started.
type serverLoad struct {
	cpu   float64            // seconds, user and system
	calls map[string]float64 // by command; a command that a script calls counts too
}

// notTheirs are the commands that come from looking, or from idle connections, and not from locking.
var notTheirs = []string{"info", "ping", "hello", "client|setinfo", "client|tracking", "config|get"}

func (o observer) load(ctx context.Context) (serverLoad, error) {
	load := serverLoad{calls: map[string]float64{}}
	for _, reply := range o.client.DoMulti(ctx,
		o.client.B().Info().Section("cpu").Build(),
		o.client.B().Info().Section("commandstats").Build()) {
		text, err := reply.ToString()
		if err != nil {
			return load, fmt.Errorf("INFO of the server: %w", err)
		}
		for line := range strings.Lines(text) {
			name, value, ok := strings.Cut(strings.TrimSpace(line), ":")
			if !ok {
				continue
			}
			if name == "used_cpu_sys" || name == "used_cpu_user" {
				seconds, err := strconv.ParseFloat(value, 64)
				if err != nil {
					return load, fmt.Errorf("INFO of the server says %s: %w", line, err)
				}
				load.cpu += seconds
			}
			if command, isCommand := strings.CutPrefix(name, "cmdstat_"); isCommand && !slices.Contains(notTheirs, command) {
				first, _, _ := strings.Cut(value, ",")
				calls, err := strconv.ParseFloat(strings.TrimPrefix(first, "calls="), 64)
				if err != nil {
					return load, fmt.Errorf("INFO of the server says %s: %w", line, err)
				}
				load.calls[command] = calls
			}
		}
	}
	return load, nil
}

func (l serverLoad) since(before serverLoad) serverLoad {
	delta := serverLoad{cpu: l.cpu - before.cpu, calls: map[string]float64{}}
	for command, calls := range l.calls {
		if n := calls - before.calls[command]; n > 0 {
			delta.calls[command] = n
		}
	}
	return delta
}

func (l serverLoad) commands() float64 {
	total := 0.0
	for _, calls := range l.calls {
		total += calls
	}
	return total
}

// less returns l minus another load.
func (l serverLoad) less(other serverLoad) serverLoad {
	rest := serverLoad{cpu: l.cpu - other.cpu, calls: map[string]float64{}}
	for command, calls := range l.calls {
		rest.calls[command] = calls - other.calls[command]
	}
	return rest
}

// over returns l per operation.
func (l serverLoad) over(ops float64) serverLoad {
	each := serverLoad{cpu: l.cpu / ops, calls: map[string]float64{}}
	for command, calls := range l.calls {
		each.calls[command] = calls / ops
	}
	return each
}

func (l serverLoad) add(other serverLoad) serverLoad {
	sum := serverLoad{cpu: l.cpu + other.cpu, calls: map[string]float64{}}
	for command, calls := range l.calls {
		sum.calls[command] += calls
	}
	for command, calls := range other.calls {
		sum.calls[command] += calls
	}
	return sum
}

// perOp lists the commands of one lock and unlock, most frequent first. It leaves out commands that occur less often than once
// in a hundred.
func (l serverLoad) perOp(ops float64) string {
	type use struct {
		command string
		times   float64
	}
	var uses []use
	for command, calls := range l.calls {
		if calls/ops >= 0.01 {
			uses = append(uses, use{command, calls / ops})
		}
	}
	slices.SortFunc(uses, func(a, b use) int {
		if a.times != b.times {
			if a.times > b.times {
				return -1
			}
			return 1
		}
		return strings.Compare(a.command, b.command)
	})
	var parts []string
	for _, u := range uses {
		parts = append(parts, u.command+" "+strconv.FormatFloat(u.times, 'f', 2, 64))
	}
	return strings.Join(parts, ", ")
}

// expiresAt is the server's wall-clock time, in Unix milliseconds, at which the key ends.
func (o observer) expiresAt(ctx context.Context, key string) (int64, error) {
	at, err := o.client.Do(ctx, o.client.B().Pexpiretime().Key(key).Build()).AsInt64()
	if err == nil && at <= 0 {
		err = fmt.Errorf("key %s is not there or has no lease", key)
	}
	return at, err
}

func (o observer) flush(ctx context.Context) error {
	return o.client.Do(ctx, o.client.B().Flushall().Build()).Error()
}

// info returns one field of INFO server, empty if it is not there.
func (o observer) info(ctx context.Context, field string) string {
	text, _ := o.client.Do(ctx, o.client.B().Info().Section("server").Build()).ToString()
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok && name == field {
			return value
		}
	}
	return ""
}

// number is one field of a section of the server's INFO.
func (o observer) number(ctx context.Context, section, field string) (float64, error) {
	text, err := o.client.Do(ctx, o.client.B().Info().Section(section).Build()).ToString()
	if err != nil {
		return 0, fmt.Errorf("INFO of the server: %w", err)
	}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok && name == field {
			return strconv.ParseFloat(value, 64)
		}
	}
	return 0, fmt.Errorf("INFO of the server has no %s", field)
}
