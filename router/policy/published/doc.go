// Package published has the policies of TensorRT-LLM's routers: [Load], [KVAware] and [Conversation] of its
// attention-DP scheduler, which place the requests of an iteration together, and [ServeKVAware] of the router
// before its servers.
//
// With the option Exactly the first three answer as TensorRT-LLM does, bit for bit: the same order, the same
// shares, the same ties (by a permutation of Python's random module), also where that is worse. They then have
// its [Admission] before them: requests that find no room, or whose strict pin names a full rank, are refused
// until a later batch. Without the option
//
//   - a strict pin on a full rank is refused, not placed elsewhere, and counts more than the conversation's rank;
//   - the tokens of pinned requests count for the rest of the batch;
//   - the fair share never refuses a request while a rank has room;
//   - a conversation that overflows counts as used.
package published
