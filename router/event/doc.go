// Package event decodes the KV cache events that inference engines publish: which token blocks came into a
// rank's KV cache and which left it.
//
// One message is a msgpack batch
//
//	[ts float64, [event...], dp_rank int]
//
// whose rank may be missing. An event is a map with a "type" key, as vLLM 0.22 and later, SGLang and
// TensorRT-LLM send it, or, in older releases, an array with the type first and the fields in a fixed
// order. Block hashes are integers, unsigned (vLLM, TensorRT-LLM) or signed (SGLang), or byte strings;
// they name blocks to their engine only and are folded to 64 bits here (see [Stored.Hashes]). Keys and
// event types that are not known are skipped and counted, so that a newer engine is still understood.
//
// A [Decoder] does not allocate once its buffers have grown, converts token ids straight into the
// little-endian bytes that block keys are hashed from, and checks every count against the bytes that are
// there and against [Limits] before it is used.
package event
