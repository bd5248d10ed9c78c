// Package feed keeps the router's prefix index up to date: it follows what engines and stores say about
// which blocks are where.
//
// [Engine] subscribes to the KV cache events of an engine's data-parallel ranks over ZeroMQ. Token ids are
// hashed to our own block keys, so that every engine's blocks and every store's records meet in one index;
// the engine's hashes serve only to find parents and removals. A lost message is replayed where the engine
// offers that, else the rank is cleared and rebuilt from what comes.
//
// [Residency] follows what a kvconnd's store holds, from a snapshot on. An engine without events needs no
// feed: what is routed to a rank is predicted to be there, see prefix.Index.Predict.
//
// # What a rank's state means
//
// A rank is [StateSynced] when its view includes every event since the engine's start. It is [StateStale]
// when something is missing: then what it has is true as far as known, but the engine may hold more. What
// the engine dropped is never kept knowingly: when in doubt the rank is cleared.
package feed
