//go:build race

package lockregistry_test

const raceDetector = true
