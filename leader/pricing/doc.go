// Package pricing finds how much of a hit is worth loading, and which boundaries the blocks of windows
// allow, and measures how fast an engine computes. Both leaders use it, under their locks: nothing here
// is safe for concurrent use.
package pricing
