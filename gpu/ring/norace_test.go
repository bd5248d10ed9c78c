//go:build !race

package ring

// raceEnabled says that the race detector is on, which allocates.
const raceEnabled = false
