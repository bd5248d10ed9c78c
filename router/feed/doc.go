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
//	stale       events are missing or could not be used, and are asked for again
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
//	the replay fails, or ends before a   cleared after a new connection or a   -
//	batch that was heard                 gap; tried again later
//	a batch is malformed, or parents     cleared; a replay of everything, ever cleared, ever more
//	are unknown too often                more rarely while it goes on          rarely
//
// Until it is cleared for such a batch, a view may have blocks that the engine has dropped. A view that was cleared is
// synced once it has batch 0 and all that follow, else it is partial; see progress. Parents that are unknown to a partial
// view show nothing.
package feed
