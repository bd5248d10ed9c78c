//go:build race

package evictionbench

const raceEnabled = true
