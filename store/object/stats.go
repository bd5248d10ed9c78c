package object

import (
	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/object/bucket"
	"github.com/kvconn/kvconn/store/object/fetch"
)

// Stats is the state of the tier at one moment. Counters run from its opening. The tags are those of package
// counters.
type Stats struct {
	// Bucket names the bucket, for people. BucketID is empty while it is not known.
	Bucket   string `json:"bucket"`
	BucketID string `json:"bucket_id"`
	Writer   string `json:"writer"`
	// Offers says that records are found: the bucket works, and this node has heard of it lately.
	Offers   bool `json:"offers" metric:"offers" help:"1 while records of the bucket are offered."`
	ReadOnly bool `json:"read_only" metric:"read_only" help:"1 while the bucket refuses writes of this node."`

	Records        int64 `json:"records" metric:"records" help:"Records in the bucket that this node knows of."`
	Objects        int64 `json:"objects" metric:"objects" help:"Data objects in the bucket."`
	ObjectBytes    int64 `json:"object_bytes" metric:"object_bytes" help:"Bytes of data objects in the bucket."`
	LeavingObjects int64 `json:"leaving_objects" metric:"leaving_objects" help:"Data objects that were removed and are not deleted yet."`
	LeavingBytes   int64 `json:"leaving_bytes" metric:"leaving_bytes" help:"Bytes of data objects that were removed and are not deleted yet."`
	LeftOut        int64 `json:"left_out" metric:"left_out_records" help:"Records of the bucket that do not fit into this node's memory of the bucket, and are not offered here."`
	Unreadable     int64 `json:"unreadable" metric:"unreadable_records" help:"Records of the bucket that need a key or a program that this node does not have."`
	IndexBytes     int64 `json:"index_bytes" metric:"index_bytes" help:"Memory of what is known of the bucket."`

	// FollowedAgeS is the age of the newest news, Position the last object of the log that was followed.
	FollowedAgeS float64 `json:"followed_age_s" metric:"followed_age_seconds" help:"Age of the newest list of the bucket that this node has followed."`
	Position     uint64  `json:"log_position" metric:"log_position" help:"Last object of the bucket's log that this node has followed."`

	// Writes under way.
	WritingRecords int   `json:"writing_records" metric:"writing_records" help:"Records that are being written to the bucket."`
	WritingBytes   int64 `json:"writing_bytes" metric:"writing_bytes" help:"Bytes of records that are being written to the bucket."`
	// ListsWaiting are lists of this node that the log does not have, the oldest for ListsWaitS.
	ListsWaiting int     `json:"lists_waiting" metric:"lists_waiting" help:"Lists of new records that this node has not published in the bucket yet."`
	ListsWaitS   float64 `json:"lists_wait_s" metric:"lists_wait_seconds" help:"Age of the oldest list of new records that this node has not published yet."`
	// Steward says that this node merges the lists of all.
	Steward bool `json:"steward" metric:"steward" help:"1 on the node that keeps the lists of the bucket in order."`
	Leases  int  `json:"leases" metric:"leases" help:"Leases in force."`

	bucket.Stats
	Fetch fetch.Stats `json:"fetch" metric:""`
}

// Stats returns the state of now.
func (t *Tier) Stats() Stats {
	c, f, x := t.catalog.Stats(), t.follower.Stats(), t.outbox.Stats()
	s := Stats{
		Bucket: t.bucket.String(), Writer: t.outbox.Writer().String(), Offers: t.Offers(), ReadOnly: t.readOnly.Load(),
		Records: c.Records, Objects: c.Objects, ObjectBytes: c.Bytes, LeavingObjects: c.LeavingObjects, LeavingBytes: c.LeavingBytes,
		LeftOut: c.LeftOut, Unreadable: c.Unreadable, IndexBytes: c.IndexBytes,
		FollowedAgeS: f.Newest.Seconds(), Position: f.Position,
		ListsWaiting: x.Waiting, ListsWaitS: x.Oldest.Seconds(),
		Steward: t.steward.Stats().Steward, Stats: t.bucket.Stats(), Fetch: t.fetcher.Stats(),
	}
	if id, known := t.follower.Bucket(); known {
		s.BucketID = id.String()
	}
	t.writes.mu.Lock()
	s.WritingRecords, s.WritingBytes = len(t.writes.flying), t.writes.bytes
	t.writes.mu.Unlock()
	t.leases.mu.Lock()
	s.Leases = len(t.leases.held)
	t.leases.mu.Unlock()
	return s
}

// Namespaces describes the namespaces that were opened here, and those that the bucket has records of. Manifests of
// the latter are in the bucket: see [Tier.Manifest].
func (t *Tier) Namespaces() []store.NamespaceInfo {
	found := t.catalog.Namespaces()
	n := &t.namespaces
	n.mu.Lock()
	defer n.mu.Unlock()
	all := make([]store.NamespaceInfo, 0, len(found)+len(n.known))
	there := make(map[connector.NamespaceDigest]bool, len(found))
	for _, digest := range found {
		there[digest] = true
		info := store.NamespaceInfo{Digest: digest}
		if ns := n.known[digest]; ns != nil {
			info.Manifest = ns.manifest
		}
		all = append(all, info)
	}
	for digest, ns := range n.known {
		if !there[digest] && ns.opened > 0 {
			all = append(all, store.NamespaceInfo{Digest: digest, Manifest: ns.manifest})
		}
	}
	return all
}
