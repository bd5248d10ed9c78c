package feed

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/router/blockkey"
	"github.com/kvconn/kvconn/router/blocksize"
	"github.com/kvconn/kvconn/store/residency"
)

// ResidencyOptions configure a [Residency].
type ResidencyOptions struct {
	// URL is the address of the stream, http://host:port/v1/residency. Tier is the tier that it is to tell of:
	// [residency.Disk], the default, or [residency.Object].
	URL, Tier string
	// Holder says which holder has a namespace's blocks, or false to ignore the namespace: another model, or
	// bytes that the router's engines cannot load. Holders must be of domain prefix.KeyDomain, a different one
	// for each namespace and store. Holder is not called for namespaces of other block sizes and schemes. It is
	// called again for each snapshot, and must not call the feed.
	Holder func(digest connector.NamespaceDigest, m *connector.Manifest) (Holder, bool)
	// Wanted says whether a namespace is of the router's model, whatever its block size. Others are ignored without a word.
	// Nil wants all.
	Wanted func(digest connector.NamespaceDigest, m *connector.Manifest) bool
	// Scheme is how the keys of the model's blocks are made, BlockSize knows the number of tokens in one, and is told what the
	// store has. Namespaces of others are ignored.
	Scheme    blockkey.Scheme
	BlockSize *blocksize.Size
	// MaxWaiting bounds the blocks of a namespace whose parent is unknown, a snapshot's included, at 32 to
	// 100 bytes each. Default 16 Mi.
	MaxWaiting int
	// ReconnectMin and ReconnectMax are the waits between attempts to connect. Defaults 100 ms and 5 s.
	ReconnectMin, ReconnectMax time.Duration
	// ForgetAfter is how long a store's blocks count while it cannot be reached. Default 30 s, longer than
	// a daemon takes to restart.
	ForgetAfter time.Duration
	// Client makes the requests. Default: one without a timeout of its own.
	Client *http.Client
	// Logger receives what an operator should know. Default [slog.Default].
	Logger *slog.Logger
}

// EnsureDefaults fills in what is not set.
func (o *ResidencyOptions) EnsureDefaults() {
	o.Tier = cmp.Or(o.Tier, residency.Disk)
	o.MaxWaiting = cmp.Or(o.MaxWaiting, 16<<20)
	o.ReconnectMin = cmp.Or(o.ReconnectMin, 100*time.Millisecond)
	o.ReconnectMax = cmp.Or(o.ReconnectMax, 5*time.Second)
	o.ForgetAfter = cmp.Or(o.ForgetAfter, 30*time.Second)
	o.Client = cmp.Or(o.Client, new(http.Client))
	o.Logger = cmp.Or(o.Logger, slog.Default())
}

// Validate reports the first option that cannot be used.
func (o *ResidencyOptions) Validate() error {
	u, err := url.Parse(o.URL)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return fmt.Errorf("feed: residency URL %q: want http://host:port/path", o.URL)
	case o.Tier != residency.Disk && o.Tier != residency.Object:
		return fmt.Errorf("feed: tier %q: want %s or %s", o.Tier, residency.Disk, residency.Object)
	case o.Holder == nil:
		return errors.New("feed: no function that names holders")
	case o.MaxWaiting < 1 || o.ReconnectMin < 0 || o.ReconnectMax < o.ReconnectMin || o.ForgetAfter < 0:
		return errors.New("feed: bounds and intervals must be positive, ReconnectMax not less than ReconnectMin")
	}
	return checkBlockSize(o.BlockSize)
}

func checkBlockSize(s *blocksize.Size) error {
	if s == nil {
		return errors.New("feed: no block size")
	}
	if tokens := s.Tokens(); tokens < 1 || tokens > connector.MaxBlockSize {
		return fmt.Errorf("feed: block size %d: want 1 to %d", tokens, connector.MaxBlockSize)
	}
	return nil
}

// ResidencyStats are the state and the counters of a store's feed.
type ResidencyStats struct {
	URL string `json:"url"`
	// Tier is the one that is followed, disk or object.
	Tier      string `json:"tier"`
	State     State  `json:"state"`
	Connected bool   `json:"connected"`
	// Error is the last reason why something does not work, empty if all is well.
	Error string `json:"error,omitempty"`
	// Epoch is the store's, LastSeq the number of its last event that was applied.
	Epoch   uint64 `json:"epoch"`
	LastSeq uint64 `json:"last_seq"`
	// Connects counts connections, Snapshots complete snapshots, Resumed connections that needed none.
	Connects  uint64 `json:"connects"`
	Snapshots uint64 `json:"snapshots"`
	Resumed   uint64 `json:"resumed"`
	// Gaps are gaps in the numbers, Malformed frames that could not be read; both cost a new snapshot.
	Gaps      uint64 `json:"gaps"`
	Malformed uint64 `json:"malformed"`
	// Records are shards stored and removed.
	Records uint64 `json:"records"`
	// Namespaces are followed, IgnoredNamespaces are not; MismatchedBlockSize are wanted, but ignored for
	// their block size.
	Namespaces          int    `json:"namespaces"`
	IgnoredNamespaces   uint64 `json:"ignored_namespaces"`
	MismatchedBlockSize uint64 `json:"mismatched_block_size"`
	// Adapters are the names of LoRA adapters whose content is known.
	Adapters int `json:"adapters"`
	// Incomplete are blocks that lack shards, Waiting blocks whose parents are unknown, Dropped blocks beyond
	// MaxWaiting, Refused blocks that the index refused.
	Incomplete int    `json:"incomplete"`
	Waiting    int    `json:"waiting"`
	Dropped    uint64 `json:"dropped"`
	Refused    uint64 `json:"refused"`
}
