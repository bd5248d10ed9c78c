// Package terminal is what commands have in common towards the person or script that runs them: the standard
// streams, progress, JSON, and the check of numbers.
package terminal

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
)

// Streams are a command's standard streams, a seam for tests.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
}

// PrintJSON writes v as indented JSON.
func PrintJSON(out io.Writer, v any) error {
	enc := json.NewEncoder(out)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// WantPositive reports the first of the flags, by name, whose value is not positive.
func WantPositive(flags map[string]float64) error {
	for _, name := range slices.Sorted(maps.Keys(flags)) {
		if !(flags[name] > 0) {
			return fmt.Errorf("--%s is %v: must be positive", name, flags[name])
		}
	}
	return nil
}
