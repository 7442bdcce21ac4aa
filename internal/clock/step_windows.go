package clock

import "time"

// Step is by how much the clock may be behind: Windows moves it on at each tick, 64 times a second by default.
const Step = 16 * time.Millisecond
