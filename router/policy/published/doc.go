// Package published has the policies of TensorRT-LLM's routers: [Load], [KVAware] and [Conversation] of its
// attention-DP scheduler, which places the requests of an iteration together, and [ServeKVAware] of the router
// in front of its servers.
//
// [Exactly] has the first three answer as TensorRT-LLM does, bit for bit: the same order of a batch, the same
// shares, the same ties (by a permutation of Python's random module), also where that is worse. TensorRT-LLM's
// admission then comes first: requests that find no room, or whose strict pin names a full rank, are refused
// until a later batch. By themselves the policies place one request at a time and differ in this:
//
//   - a strict pin on a full rank is refused, not placed elsewhere, and outweighs the conversation's rank;
//   - the fair share never refuses a request while a rank has room;
//   - a conversation that overflows counts as used.
package published
