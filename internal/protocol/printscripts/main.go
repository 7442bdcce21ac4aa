// Printscripts prints a script as servers get it, put together from sections of files:
//
//	go run ./internal/protocol/printscripts NAME
//
// Without a name it lists the names.
package main

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/lockregistry/lockregistry/internal/protocol"
	_ "github.com/lockregistry/lockregistry/internal/protocol/operator" // it has scripts, too
)

func main() {
	scripts := protocol.Scripts()
	names := slices.Sorted(maps.Keys(scripts))
	if len(os.Args) < 2 {
		fmt.Println(strings.Join(names, "\n"))
		return
	}
	for _, name := range os.Args[1:] {
		script, ok := scripts[name]
		if !ok {
			fmt.Fprintf(os.Stderr, "no script %q: there are %s\n", name, strings.Join(names, ", "))
			os.Exit(2)
		}
		fmt.Print(script.Source)
	}
}
