// Package policy chooses the data-parallel rank for a request from what the router knows of every rank:
// its load, the prefix it has in its GPU and can load from disk and object store, and its measured
// speeds.
//
// A [Policy] decides for a batch, in which earlier placements count for later requests; one request is
// a batch of one. Every policy is deterministic: the same state, requests and past calls give the same
// decisions on every machine, so that routers beside each other agree without talking. None allocates
// when deciding, unless scores are asked for or a conversation is seen for the first time. A policy is
// used by one goroutine at a time.
//
// A decision is always a rank of the given state that is ready and below its capacity, or none with the
// reason.
package policy
