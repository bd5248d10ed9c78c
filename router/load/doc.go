// Package load keeps track of the requests that are in flight on each data-parallel rank: waiting, in
// prefill and in decode.
//
// The router books a request when it places it ([Tracker.Add]), is told when its prefill is done and
// when it has finished, and forgets one of which nothing was heard for a time. [Tracker.Snapshot]
// copies the resulting load of every rank into memory of the caller, without allocating: it is what the
// policies of router/policy decide by.
package load
