package route

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/router/feed"
	"github.com/kvconn/kvconn/router/prefix"
)

// sourceKey names a store that ranks can share: the part of a node's disk or of a bucket that holds a model.
type sourceKey struct {
	tier                  prefix.Tier
	id, model             string
	cacheModel, namespace string
}

// source is a store that ranks load from.
type source struct {
	sourceKey
	url       string
	blockSize int
	feed      *feed.Residency
	users     int // ranks; under the router's mu
	stop      context.CancelFunc
	done      sync.WaitGroup
	// speed is measured, bytes a second; bytesPerToken is of the newest namespace.
	speed, bytesPerToken atomicFloat

	mu      sync.Mutex
	holders map[connector.NamespaceDigest]prefix.Holder
}

// accepts says whether ranks of the source can load the blocks of a namespace.
func (s *source) accepts(digest connector.NamespaceDigest, m *connector.Manifest) bool {
	if m == nil || m.BlockSize != s.blockSize || m.KeyScheme != connector.KeySchemeTokens {
		return false
	}
	if s.namespace != "" {
		return strings.EqualFold(hex.EncodeToString(digest[:]), s.namespace)
	}
	return m.Model == s.cacheModel
}

// holder returns the holder of a namespace's blocks; added is true if it is new.
func (s *source) holder(x *prefix.Index, digest connector.NamespaceDigest, m *connector.Manifest) (h prefix.Holder, added bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h, ok := s.holders[digest]; ok {
		return h, false, nil
	}
	if h, err = x.AddHolder(prefix.KeyDomain); err != nil {
		return 0, false, err
	}
	s.holders[digest] = h
	if n := bytesPerToken(m); n > 0 {
		s.bytesPerToken.store(n)
	}
	return h, true, nil
}

func (s *source) holderList() []prefix.Holder {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.holders))
}

// bytesPerToken is the KV that a token of the prefix has in all shards of full attention, 0 if the
// manifest does not tell.
func bytesPerToken(m *connector.Manifest) float64 {
	if m == nil {
		return 0
	}
	width := 0.0
	switch t := strings.ToLower(m.KVDType); {
	case strings.HasPrefix(t, "fp8"), strings.HasPrefix(t, "float8"), t == "int8", t == "uint8":
		width = 1
	case t == "bfloat16", t == "float16", t == "half":
		width = 2
	case t == "float32", t == "float":
		width = 4
	}
	sum := 0.0
	for _, g := range m.Groups {
		if g.Window > 0 {
			continue
		}
		n := float64(g.Layers) * float64(g.KVHeads) * float64(g.HeadSize)
		if !g.Replicated {
			n *= float64(m.TensorParallel)
		}
		sum += n
	}
	return sum * width
}

// maxStatusBytes bounds a node's answer.
const maxStatusBytes = 16 << 20

// askTimeout bounds asking a node.
const askTimeout = 5 * time.Second

// measure asks the kvconnd for the speed of its tier until ctx ends. If it has no answer the speed stays as it
// was.
func (s *source) measure(ctx context.Context, every time.Duration) {
	client := &http.Client{Timeout: askTimeout}
	for {
		if v, err := s.ask(ctx, client); err == nil && v > 0 {
			s.speed.store(v)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(every):
		}
	}
}

func (s *source) ask(ctx context.Context, c *http.Client) (float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+"/v1/status", nil)
	if err != nil {
		return 0, err
	}
	resp, err := c.Do(req)
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("%s/v1/status: %s", s.url, resp.Status)
	}
	var st struct {
		Tiers []struct {
			Tier         string  `json:"tier"`
			LoadBytesPer float64 `json:"load_bytes_per_s"`
		} `json:"tiers"`
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxStatusBytes)).Decode(&st); err != nil {
		return 0, fmt.Errorf("%s/v1/status: %w", s.url, err)
	}
	for _, t := range st.Tiers {
		if t.Tier == s.tier.String() {
			return t.LoadBytesPer, nil
		}
	}
	return 0, nil
}
