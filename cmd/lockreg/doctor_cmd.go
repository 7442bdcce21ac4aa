package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/redis/rueidis"
	"github.com/spf13/cobra"

	"github.com/lockregistry/lockregistry/cmd/lockreg/doctor"
	"github.com/lockregistry/lockregistry/cmd/lockreg/internal/printable"
)

func (a *app) doctorCommand() *cobra.Command {
	var o doctor.Options
	cmd := &cobra.Command{
		Use:   "doctor PREFIX",
		Short: "Find problems in a Redis deployment",
		Long:  doctorHelp,
		Args: func(cmd *cobra.Command, args []string) error {
			if given := cmd.Flags().Changed("prefix"); given == (len(args) > 0) || len(args) > 1 {
				return usage("write: lockreg %s", cmd.Use)
			}
			if len(args) == 1 {
				o.Prefix = args[0]
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			layout, err := parseLayout(a.layout)
			if err != nil {
				return err
			}
			o.Layout = layout
			return a.doctor(cmd, o)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.Prefix, "prefix", "", "the same as PREFIX")
	flags.StringSliceVar(&o.Need, "need", []string{"lock", "queue", "tracking"},
		"what the user must be permitted: "+strings.Join(doctor.Modes(), ", "))
	flags.IntVar(&o.Replicas, "replicas", 0, "number of replicas that WithReplicas is given (default: it is not used)")
	flags.DurationVar(&o.Lease, "lease", 0, "lease of the locks (default: 60s; 30s with --layout redisson)")
	flags.DurationVar(&o.ScanFor, "scan-for", 10*time.Second, "how long to look for leftover keys, at most")
	_ = cmd.RegisterFlagCompletionFunc("need", cobra.FixedCompletions(doctor.Modes(), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (a *app) doctor(cmd *cobra.Command, o doctor.Options) error {
	if o.Prefix == "" || o.Lease < 0 || o.Replicas < 0 || o.ScanFor <= 0 {
		return usage("--prefix must not be empty, --lease and --replicas not be negative, and --scan-for be positive")
	}
	for _, name := range o.Need {
		if !slices.Contains(doctor.Modes(), name) {
			return usage("--need is %q: it is one or more of %s", name, strings.Join(doctor.Modes(), ", "))
		}
	}
	client, err := a.connect(cmd.Context())
	if err != nil {
		return err
	}
	defer client.Close()
	option, err := a.option()
	if err != nil {
		return err
	}
	if written, err := rueidis.ParseURL(a.address()); err == nil { // the options that a program gets from this address
		option.DisableCache, option.ConnWriteTimeout, option.Dialer = written.DisableCache, written.ConnWriteTimeout, written.Dialer
	}
	o.Client = &option
	if inspector, closeAll, err := a.inspector(cmd.Context(), o.Prefix); err == nil {
		a.warn(a.noLocks(cmd.Context(), inspector, o.Prefix)) // no finding: a deployment is looked at before its first lock, too
		closeAll()
	}
	report, err := doctor.Check(cmd.Context(), client, o)
	if err != nil {
		return exit{exitUnavailable, err}
	}
	if a.json {
		err = a.printJSON(report)
	} else {
		err = printReport(a.out, report)
	}
	if worst := report.Worst(); err == nil && (worst == doctor.Warning || worst == doctor.Error) {
		err = exit{code: exitFound}
	}
	return err
}

// printReport prints a report for people.
func printReport(to io.Writer, r doctor.Report) error {
	var b strings.Builder
	for _, n := range r.Nodes {
		fmt.Fprintln(&b, strings.Join(strings.Fields(printable.Text(n.Address+" "+n.Role+" "+n.Server)), " "))
	}
	for _, f := range r.Findings {
		if f.Severity == doctor.OK {
			continue
		}
		fmt.Fprintf(&b, "\n%s: %s\n", strings.ToUpper(string(f.Severity)), f.ID)
		for _, part := range []struct{ name, text string }{
			{"at", strings.Join(f.Nodes, " ")}, {"seen", f.Seen}, {"why", f.Why}, {"do", f.Do},
		} {
			if part.text != "" {
				fmt.Fprintf(&b, "  %-5s %s\n", part.name, wrapped(printable.Text(part.text), 90, "        "))
			}
		}
		for _, command := range f.Commands { // redis-cli's own escapes stay as they are
			fmt.Fprintf(&b, "        > %s\n", command)
		}
	}
	var well []string
	for _, f := range r.Findings {
		if f.Severity == doctor.OK {
			well = append(well, f.ID)
		}
	}
	fmt.Fprintf(&b, "\nOK: %s\n", wrapped(strings.Join(well, ", "), 94, "    "))
	_, err := io.WriteString(to, b.String())
	return err
}

// wrapped breaks a text into lines.
func wrapped(text string, width int, indent string) string {
	var b strings.Builder
	length := 0
	for i, word := range strings.Fields(text) {
		switch {
		case i == 0:
		case length+1+len(word) > width:
			b.WriteString("\n" + indent)
			length = 0
		default:
			b.WriteByte(' ')
			length++
		}
		b.WriteString(word)
		length += len(word)
	}
	return b.String()
}
