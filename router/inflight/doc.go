// Package inflight keeps track of the requests that are in flight on each data-parallel rank: waiting, in
// prefill and in decode.
//
// The router books a request when it places it ([Tracker.Add]), reports the end of its prefill and its own
// end, and forgets a request that nobody mentions for a time. [Tracker.Snapshot] copies the resulting load
// of every rank into the caller's memory without allocating. Policies decide by that load.
package inflight
