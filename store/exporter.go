package store

import (
	"context"

	"github.com/kvconn/kvconn/connector"
)

// Exporter is a tier whose records may be read without knowing their prefix, to be put elsewhere.
type Exporter interface {
	// Export reads and verifies records like [Reader]. Of Record only the ID counts: Parent, Proof and Scope
	// of an op are set from the verified header where Err is nil.
	Export(ctx context.Context, ops []*ReadOp, done func(*ReadOp))
}

// UseListener is a tier that wants to know which of its records are in use, though a faster tier serves
// them.
type UseListener interface {
	// Used says that the records of keys are in use with each of shards. It may drop what it is told, and
	// does not wait for I/O.
	Used(ns connector.NamespaceDigest, shards []connector.Shard, keys []connector.Key)
}
