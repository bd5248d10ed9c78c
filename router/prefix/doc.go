// Package prefix is the router's prefix index: which holders (a rank's GPU, a node's disk,
// a bucket) have which prefix blocks, and how far each rank gets with a given prompt.
//
// # Structure
//
// The index is a trie of runs. A run is a stretch of one chain of blocks: one array of keys
// shared by all holders of any of them, the engines' names for them beside it, and a
// coverage that says who holds which (package coverage). Children hang at (offset, key) and
// are found by key alone, in one table: a chained key identifies everything before it, so a
// key has one place in the trie. A fork therefore splits nothing, and a hole doesn't either.
// A block that nobody holds stays as a placeholder while blocks below it are held.
//
// # Walks
//
// A walk compares the query with a run at one place, the end of the stretch that both may
// have: keys are chained, so equality there is equality of all before. Only where a prompt
// leaves a run is the place searched for, by halving. Ranks are accounted for when their
// holders change, not per block, so the cost of a walk depends on the number of runs and of
// changes of holders that it meets.
//
// # Concurrency
//
// Any number of walks run beside one writer at a time (writers take a mutex). Walks take
// no lock, wait for nothing and allocate nothing: key arrays are append-only beyond a
// published length, a coverage is replaced as a whole or changed by single atomic words,
// and whatever a walk has reached stays intact until the walk drops it. A walk that
// runs beside writes sees each run as it was at some moment of the walk.
package prefix
