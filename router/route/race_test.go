//go:build race

package route

// raceEnabled says that the race detector is on, which makes pools allocate.
const raceEnabled = true
