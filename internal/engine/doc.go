// Package engine is kvconn's built-in engine: a small transformer (package model) with
// what makes an LLM server's KV cache hard to handle: a paged cache in shared memory,
// layer groups with windows, ranks that are processes, continuous batching, chunked
// prefill, prefix caching, preemption, overlapping steps, and a scheduler that calls the
// KV connector in the order in which vLLM or TensorRT-LLM does.
//
// It serves the demo and the fast tests. Its tokens do not depend on batching, chunking,
// block numbers or on where KV came from, and do depend on every block of KV: so a wrong
// byte of cache shows as a wrong token, within milliseconds. Blocks that are handed out
// are filled with NaN, so that KV that nobody wrote shows too. It is as unforgiving as
// real engines are: a connector that breaks the contract ends the run with an error.
package engine
