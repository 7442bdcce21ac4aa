package kit

import (
	"fmt"
)

// Numbered are so many paths, in the order of their keys.
func Numbered(paths int) []string {
	all := make([]string, paths)
	for i := range all {
		all[i] = fmt.Sprintf("%05d", i)
	}
	return all
}
