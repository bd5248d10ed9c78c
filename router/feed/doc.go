// Package feed keeps the router's prefix index up to date: it follows what engines and stores say about
// which blocks are where.
//
// [Rank] subscribes to the KV cache events of one data-parallel rank of an engine over ZeroMQ. Token ids are
// hashed to our own block keys, so that every engine's blocks and every store's records meet in one index;
// the engine's hashes serve only to find parents and removals.
//
// [Residency] follows what a kvconnd's store holds, beginning with a snapshot. An engine without events needs
// no feed: blocks routed to a rank are predicted to be there, see prefix.Index.Predict.
//
// # What a rank's state means
//
// A rank's view never knowingly keeps what the engine has dropped: when in doubt the rank is cleared.
//
//	connecting  there is no connection
//	refused     the engine's blocks have another size than the router's
//	synced      the view has every event since the engine's start
//	partial     the view has every event since a later one: what it has is true, but the engine may hold more
//	stale       events are missing, or what the view has may be wrong: a replay is due
//
// What changes it, for an engine that replays past batches and for one that does not:
//
//	what happened                        with replays                          without
//	batches are missing or were dropped  a replay after the last batch         cleared
//	the connection was lost              nothing yet                           cleared
//	the connection is back               a replay after the last batch         -
//	the replay lacks that batch          cleared; what it has is applied       -
//	the replay has another batch there,  cleared; a replay of everything       cleared
//	or numbers begin again
//	the replay breaks off                a replay after its last batch, as     -
//	                                     long as each brings some
//	the replay fails, or lacks a batch   cleared after a new connection or a   -
//	that was heard                       gap; tried again later
//	a batch is malformed                 cleared                               cleared
//	parents are unknown too often        cleared; a replay of everything, ever cleared, ever more
//	                                     more rarely while it goes on          rarely
//
// A view that was cleared is synced once it has batch 0 and all that follow, else it is partial; see progress. Parents
// that are unknown to a partial view show nothing.
//
// libzmq's ROUTER keeps 1,000 messages for a peer and drops the rest without a word, so that a long replay has holes
// wherever its reader was slower than the engine (measured with libzmq 4.3.5: with 64 blocks a batch, most replays of
// 10,000). vLLM and SGLang use it with that default.
package feed
