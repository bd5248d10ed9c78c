// Package publish tells other programs what a kvconn store holds, as KV cache events in vLLM's form: over
// ZeroMQ, in numbered batches, with replays. A router that follows engines can follow a store like one more
// rank.
//
// A store knows block keys and no tokens. Its events are therefore those of vLLM's own offload tiers:
// BlockStored and BlockRemoved with hashes only, token_ids empty, no parent, medium "STORAGE". A router can use
// them if it computes kvconn's keys (connector.NextKey), or, for a namespace whose keys are the engine's own
// hashes (key scheme "engine"), if it has met the same hashes in that engine's events: the key's first 8 bytes,
// big endian, are those of the page's SHA-256, as SGLang publishes them.
//
// A block is announced when all its shards that a prefix needs are stored, and withdrawn when the first of
// them has gone. The stream begins with AllBlocksCleared and everything that is there, and does so again after
// a gap in the store's own events.
package publish
