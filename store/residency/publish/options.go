package publish

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/zmtp"
)

// HashForm is how a block's key is published.
type HashForm string

// The forms of hashes.
const (
	// HashUint64 is the key's first 8 bytes, big endian, as an unsigned integer: what vLLM and
	// TensorRT-LLM send by default.
	HashUint64 HashForm = "uint64"
	// HashInt64 is the same as a signed integer: what SGLang sends.
	HashInt64 HashForm = "int64"
	// HashBytes is the whole key, 16 bytes: vLLM's other form.
	HashBytes HashForm = "bytes"
)

// Options configure a [Publisher].
type Options struct {
	// Endpoint is where subscribers connect, tcp://host:port or ipc://path; Rank is added to the port.
	Endpoint string
	// ReplayEndpoint is where past batches are asked for, with Rank added as well. Empty means no replay.
	ReplayEndpoint string
	// Topic is the first frame of every message. Default empty, as vLLM's.
	Topic string
	// Rank is the data-parallel rank that batches name.
	Rank int
	// Hashes is how keys are published. Default [HashUint64].
	Hashes HashForm
	// Medium names the tier. Default "STORAGE".
	Medium string
	// Accept chooses namespaces. Default all. Two that differ in bytes only (KV type, layout) have the
	// same keys, which one stream cannot tell apart.
	Accept func(digest connector.NamespaceDigest, m *connector.Manifest) bool
	// History bounds what can be replayed.
	History zmtp.HistoryOptions
	// Server bounds subscribers and those who ask for replays.
	Server zmtp.ServerOptions
	// Logger receives what an operator should know. Default [slog.Default].
	Logger *slog.Logger
}

// EnsureDefaults fills in what is not set.
func (o *Options) EnsureDefaults() {
	if o.Hashes == "" {
		o.Hashes = HashUint64
	}
	if o.Medium == "" {
		o.Medium = "STORAGE"
	}
	if o.Accept == nil {
		o.Accept = func(connector.NamespaceDigest, *connector.Manifest) bool { return true }
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	o.History.EnsureDefaults()
	o.Server.EnsureDefaults()
}

// Validate reports the first option that cannot be used.
func (o *Options) Validate() error {
	switch o.Hashes {
	case HashUint64, HashInt64, HashBytes:
	default:
		return fmt.Errorf("publish: hash form %q: want %q, %q or %q", o.Hashes, HashUint64, HashInt64, HashBytes)
	}
	if o.Rank < 0 || len(o.Topic) > 255 || len(o.Medium) > 255 {
		return errors.New("publish: a negative rank, or a topic or medium of more than 255 bytes")
	}
	if _, err := zmtp.Offset(o.Endpoint, o.Rank); err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	if o.ReplayEndpoint != "" {
		if _, err := zmtp.Offset(o.ReplayEndpoint, o.Rank); err != nil {
			return fmt.Errorf("publish: replay: %w", err)
		}
	}
	return errors.Join(o.History.Validate(), o.Server.Validate())
}
