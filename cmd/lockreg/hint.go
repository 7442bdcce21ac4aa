package main

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/lockregistry/lockregistry/cmd/lockreg/internal/printable"
)

// didYouMean returns the name that is most similar to an unknown word; empty if none is.
func didYouMean(word string, names []string) string {
	best, least := "", len(word)/3+1
	for _, name := range names {
		if d := distance(word, name); d <= least && d > 0 && (best == "" || d < least) {
			best, least = name, d
		}
	}
	if best == "" {
		return ""
	}
	return ": did you mean " + printable.Text(best) + "?"
}

// pathLike returns the path that may be meant by one at which there is nothing, as with didYouMean: one that begins with it, has
// it within, or is similar. Names are in order.
func pathLike(word string, names []string) string {
	for _, like := range []func(name, word string) bool{strings.HasPrefix, strings.Contains} {
		if i := slices.IndexFunc(names, func(name string) bool { return like(name, word) }); i >= 0 {
			return ": did you mean " + printable.Text(names[i]) + "?"
		}
	}
	return didYouMean(word, names)
}

// distance is how many letters differ, are missing, or have changed places with the next one.
func distance(a, b string) int {
	x, y := []rune(a), []rune(b)
	rows := make([][]int, len(x)+1)
	for i := range rows {
		rows[i] = make([]int, len(y)+1)
		rows[i][0] = i
	}
	for j := range y {
		rows[0][j+1] = j + 1
	}
	for i := 1; i <= len(x); i++ {
		for j := 1; j <= len(y); j++ {
			d := min(rows[i-1][j], rows[i][j-1]) + 1
			if x[i-1] == y[j-1] {
				d = min(d, rows[i-1][j-1])
			} else {
				d = min(d, rows[i-1][j-1]+1)
			}
			if i > 1 && j > 1 && x[i-1] == y[j-2] && x[i-2] == y[j-1] {
				d = min(d, rows[i-2][j-2]+1)
			}
			rows[i][j] = d
		}
	}
	return rows[len(x)][len(y)]
}

// noCommand handles a word that is no command.
func noCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var names []string
	for _, c := range cmd.Commands() {
		if slices.Contains(c.SuggestFor, args[0]) {
			return usage("unknown command %q: did you mean %s?", args[0], c.Name())
		}
		if !c.Hidden {
			names = append(append(names, c.Name()), c.Aliases...)
		}
	}
	return usage("unknown command %q%s", args[0], didYouMean(args[0], names))
}

// noFlag adds to the error of a flag that does not exist what may have been meant.
func noFlag(cmd *cobra.Command, err error) error {
	_, name, found := strings.Cut(err.Error(), "unknown flag: --")
	if !found {
		return err
	}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	slices.Sort(names)
	return usage("unknown flag: --%s%s", name, didYouMean(name, names))
}

// span is a flag for a duration; a number alone is in seconds, as flock has it.
type span time.Duration

func (s *span) String() string { return time.Duration(*s).String() }
func (s *span) Type() string   { return "duration" }

func (s *span) Set(text string) error {
	if n, err := strconv.ParseFloat(text, 64); err == nil {
		text = strconv.FormatFloat(n, 'f', -1, 64) + "s"
	}
	d, err := time.ParseDuration(text)
	*s = span(d)
	return err
}
