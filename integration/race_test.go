//go:build race

package integration

// buildFlags puts the daemon under the race detector, too.
func buildFlags() []string { return []string{"-race"} }
