package right

import "testing"

// A test may do wrong on purpose.
func TestTaken(t *testing.T) {
	if _, err := new(service).lock.Acquire(t.Context()); err == nil {
		t.Error("it is free")
	}
}
