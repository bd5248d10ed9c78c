package publish

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/kvconn/kvconn/connector"
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
	// Endpoint is where subscribers connect, tcp://host:port or ipc://path.
	Endpoint string
	// ReplayEndpoint is where past batches are asked for. Empty means no replay.
	ReplayEndpoint string
	// Topic is the first frame of every message. Default empty, as vLLM's.
	Topic string
	// Hashes is how keys are published. Default [HashUint64].
	Hashes HashForm
	// Accept chooses namespaces. Default all. Two that differ in bytes only (KV type, layout) have the
	// same keys, which one stream cannot tell apart.
	Accept func(digest connector.NamespaceDigest, m *connector.Manifest) bool
	// Retry is the pause before publishing begins again after it broke off. Default 5 s.
	Retry time.Duration
	// Logger receives what an operator should know. Default [slog.Default].
	Logger *slog.Logger
}

// EnsureDefaults fills in what is not set.
func (o *Options) EnsureDefaults() {
	o.Hashes = cmp.Or(o.Hashes, HashUint64)
	if o.Accept == nil {
		o.Accept = func(connector.NamespaceDigest, *connector.Manifest) bool { return true }
	}
	o.Retry = cmp.Or(o.Retry, 5*time.Second)
	o.Logger = cmp.Or(o.Logger, slog.Default())
}

// Validate reports the first option that cannot be used. Endpoints are tried by [New].
func (o *Options) Validate() error {
	switch o.Hashes {
	case HashUint64, HashInt64, HashBytes:
	default:
		return fmt.Errorf("publish: hash form %q: want %q, %q or %q", o.Hashes, HashUint64, HashInt64, HashBytes)
	}
	if len(o.Topic) > 255 || o.Retry < 0 {
		return errors.New("publish: a topic of more than 255 bytes, or a negative pause")
	}
	return nil
}
