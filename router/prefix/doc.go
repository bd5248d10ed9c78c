// Package prefix is the router's prefix index: which holders (a rank's GPU, a node's disk,
// a bucket) have which prefix blocks, and how far each rank gets with a given prompt.
//
// # Structure
//
// The index is a trie of runs. A run is a stretch of one chain of blocks: one array of keys
// shared by everyone who holds any of them, the engines' names for them beside it, and a
// coverage that says who holds what. Children hang at (offset, key) and are found by key
// alone, in one table: a chained key identifies everything before it, so a key has one
// place in the trie. A fork therefore splits nothing, and neither does a hole: coverage
// knows holders that have a run's first blocks (a cut-off), large groups with the same
// cut-off (a bitset) and holders with holes (a bitmap, turned back into a cut-off when the
// hole heals). A block nobody holds stays as a placeholder while blocks below it are held.
//
// # Walks
//
// A walk compares the query with a run at one place, the far end of what they share: keys
// are chained, so equality there is equality of all before. Only where a prompt leaves a
// run is the place searched for, by halving. Ranks are accounted for when their holders
// change, not per block, so that a walk costs about as much as the runs and changes of
// holders it meets.
//
// # Concurrency
//
// Any number of walks run beside one writer at a time (writers take a mutex). Walks take
// no lock, wait for nothing and allocate nothing: key arrays are append-only behind a
// published length, a coverage is replaced as a whole or changed by single atomic words,
// and what a walk has reached stays intact until the walk has let go of it. A walk that
// runs beside writes sees each run as it was at some moment of the walk.
package prefix
