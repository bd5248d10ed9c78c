// Package policy chooses the data-parallel rank for a request from what the router knows of every rank:
// its load, how much of the prompt it has in its GPU and can load from disk and object store, and its
// measured speeds.
//
// A [Policy] takes one request and makes one decision. A [Batcher] can also place several requests at once,
// in an order of its own. Every policy is deterministic: the same state, requests and past calls give the
// same decisions on every machine, so that routers that run side by side agree without talking. No policy
// allocates memory when it decides, unless it has to explain the scores of more ranks than before or sees a
// conversation for the first time. A policy is used by one goroutine at a time.
//
// A decision is always a rank of the given state that is ready and below its capacity, or none with the
// reason.
//
// Package published has the policies of TensorRT-LLM's routers, package byname makes policies by their
// names.
package policy
