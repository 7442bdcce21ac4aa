//go:build !windows

package clock

import "time"

// Step is by how much the clock may be behind.
const Step time.Duration = 0
