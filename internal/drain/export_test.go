package drain

// Arrivals is how many have called Holders.
func (d *Drain) Arrivals() uint64 { return d.arrivals.Load() }
