// Package residency is the stream in which a store says what it holds: [Writer] and [Reader] of its format,
// [Stream], which tells one reader what a store's subscription says, and [Shards], which knows when a block
// is complete.
//
// A stream is a sequence of frames without end, each a length, u32 little endian, and that many bytes of a
// msgpack array whose first element is the frame's type:
//
//	[1, version, epoch, resumed]             hello; resumed streams have no snapshot
//	[2, number, digest bin, manifest bin]    a namespace, before its first record; the manifest is its
//	                                         canonical JSON, empty if the store has lost it
//	[3, first, records bin]                  records; first is the number of the first event, or 0 in the
//	                                         snapshot; the others count on from it
//	[4, seq, count]                          the snapshot of count records ends, as of event seq
//	[5, seq]                                 nothing happened for a while; the last event was seq
//	[6, code, text]                          the stream ends: "lagged", "stopping" or "error"
//
// A record is 39 bytes: kind u8 (1 stored, 2 removed), shard u16, namespace's number u32, key, and the key of the
// chain's previous block (its scope's root key for the first one, zero if removed). Numbers are little
// endian. Readers skip frames of types they do not know.
//
// Records are packed into few msgpack values because a store of 4 TB has millions of them: 39 bytes each
// here, about 110 as a line of JSON with hexadecimal keys, and a few nanoseconds to read.
//
// A reader that lost its connection asks for the events after its [Position]. If the store still has them,
// the stream resumes there; otherwise it begins with a snapshot. Each stream numbers namespaces by itself, and
// a request to resume says that its reader knows that (numbers=stream). Readers of earlier releases take a
// number for what it was in the stream before: for them every stream begins with a snapshot.
package residency
