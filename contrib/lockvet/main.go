// Lockvet finds mistakes in code that uses lockregistry. It runs as part of go vet:
//
//	go install github.com/lockregistry/lockregistry/contrib/lockvet@latest
//	go vet -vettool=$(which lockvet) ./...
//
// Each rule is an analyzer of package rules, for programs that run several. lockvet help lists them, and -NAME=false turns one
// off.
package main

import (
	"golang.org/x/tools/go/analysis/unitchecker"

	"github.com/lockregistry/lockregistry/contrib/lockvet/rules"
)

func main() { unitchecker.Main(rules.All()...) }
