package store

import "github.com/kvconn/kvconn/connector"

// RecordID is what a record is found by, in every tier.
type RecordID struct {
	Namespace connector.NamespaceDigest
	Shard     connector.Shard
	Key       connector.Key
}

// Record is a record and the prefix that its bytes must belong to: the key of the block before it
// in the prompt, and the proof of the whole prefix.
type Record struct {
	ID     RecordID
	Parent connector.Key
	Proof  connector.Proof
	// AnyParent, set for a read whose caller does not know the parent, has the proof alone prove the
	// prefix. The tier that delivers the record sets Parent to what is stored with it.
	AnyParent bool
}
