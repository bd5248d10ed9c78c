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
//	stale       events are missing: what the view has is true, but the engine may hold more
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
//	the replay fails                     cleared after a new connection or a   -
//	                                     gap; tried again later
//	a batch is malformed, or parents     cleared; a replay of everything, ever cleared
//	are unknown too often                more rarely while it goes on
//
// A view that was cleared is synced once it has batch 0 and all that follow, else it stays stale; see progress.
package feed
