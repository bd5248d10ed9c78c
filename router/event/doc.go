// Package event decodes the KV cache events that inference engines publish: which token blocks entered a
// rank's KV cache and which left it.
//
// One message is a msgpack batch
//
//	[ts float64, [event...], dp_rank int]
//
// whose rank may be missing. An event is a map with a "type" key (vLLM 0.22 and later, SGLang, TensorRT-LLM)
// or, in older releases, an array with the type first and the fields in a fixed order. Block hashes are
// integers, unsigned (vLLM, TensorRT-LLM) or signed (SGLang), or byte strings. They mean something to their
// engine only and are folded to 64 bits here (see [Stored.Hashes]). Unknown keys and event types are skipped
// and counted, so that a newer engine is still understood.
//
// A [Decoder] does not allocate once its buffers have grown. It converts token ids straight into the
// little-endian bytes that block keys are hashed from. Every count is checked against the bytes that are
// there and against the bounds of [NewDecoder] before it is used.
package event
