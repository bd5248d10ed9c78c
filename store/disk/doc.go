// Package store keeps records of KV cache on local disk: bounded, verified and safe
// across restarts.
//
// A record is one shard of one token block. Its bytes live in a slot of a preallocated
// segment file, after a header that says what they are; reads and writes go straight
// between the disk and the caller's aligned buffers. Lookups are served from a compact
// table in memory. Pebble is the durable journal of that table and never serves a
// lookup. A clean stop leaves a snapshot of the table; after a crash it is read from the
// journal. Segment headers are the truth: where the journal is damaged, lost or old,
// they are read instead, while the store is in use.
//
// The order that makes a crash harmless: payload, then index entry, then barrier. A slot
// is used again only after the barrier that made the deletion of its last record
// durable, and every read verifies header and payload against what the caller asked
// for, so that a stale index entry is a miss and never a wrong byte.
//
// A [Store] may be used by any number of goroutines at once.
package disk
