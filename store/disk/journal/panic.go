package journal

import "fmt"

// panicAsError makes an error of a panic of the calling function: Pebble answers some
// damage of its files that way while it opens them.
func panicAsError(err *error) {
	if r := recover(); r != nil {
		*err = fmt.Errorf("pebble: %v", r)
	}
}
