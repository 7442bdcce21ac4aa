package kit

import (
	"fmt"
)

// NumberedPaths returns that many paths, in the order of their keys.
func NumberedPaths(paths int) []string {
	all := make([]string, paths)
	for i := range all {
		all[i] = fmt.Sprintf("%05d", i)
	}
	return all
}
