package protocol

import "strings"

// Slots is how many slots a cluster has.
const Slots = 16384

// Slot returns the slot of a key in a cluster: CRC16 (XMODEM) of the key, or of its hash tag, the text between the first
// brace and the next closing one, unless that is empty.
func Slot(key string) uint16 {
	if start := strings.IndexByte(key, '{'); start >= 0 {
		if tag, _, ok := strings.Cut(key[start+1:], "}"); ok && tag != "" {
			key = tag
		}
	}
	var crc uint16
	for i := range len(key) {
		crc = crc<<8 ^ remainders[byte(crc>>8)^key[i]]
	}
	return crc % Slots
}

// remainders are the CRC16 of each byte. A call on a cluster computes several slots: bit by bit each took 0.5 µs.
var remainders = func() (all [256]uint16) {
	for i := range all {
		crc := uint16(i) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
		all[i] = crc
	}
	return all
}()
