package protocol

import (
	_ "embed"
)

// toy is a format that this file and testdata/toy.lua make: see TestFormat.
//
//go:embed testdata/toy.lua
var toySource string

var toy = describe(Description{
	Name: "toy", Source: split(toySource),
	Channel: func(prefix string) string { return prefix + ":free:" },
	Within:  func(key string) string { return key },
	Counter: fencingCounter,
})
