//go:build !unix

package main

import (
	"errors"

	"github.com/spf13/cobra"
)

func (a *app) runCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "run",
		Short: "Run a command under a lock; not on this system",

		DisableFlagParsing: true, // no flag is known, and none is the mistake

		RunE: func(*cobra.Command, []string) error {
			return errors.New("run needs process groups and signals, which this system does not have")
		},
	}
}

func attend([]string) bool { return false }
