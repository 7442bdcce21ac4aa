package kit

import (
	"fmt"
)

// NumberedPaths are so many paths, in the order of their keys.
func NumberedPaths(paths int) []string {
	all := make([]string, paths)
	for i := range all {
		all[i] = fmt.Sprintf("%05d", i)
	}
	return all
}
