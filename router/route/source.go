package route

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/httpserve"
	"github.com/kvconn/kvconn/router/blockkey"
	"github.com/kvconn/kvconn/router/feed"
	"github.com/kvconn/kvconn/router/prefix"
	"github.com/kvconn/kvconn/router/registry"
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
	url    string
	scheme blockkey.Scheme
	feed   *feed.Residency
	users  int // ranks; under the router's mu
	stop   context.CancelFunc
	done   sync.WaitGroup
	// speed and latency are measured, bytes a second and seconds; bytesPerToken is of the newest namespace.
	speed, latency, bytesPerToken atomicFloat

	mu      sync.Mutex
	holders map[connector.NamespaceDigest]prefix.Holder
}

// accepts says whether ranks of the source can load the blocks of a namespace.
func (s *source) accepts(digest connector.NamespaceDigest, m *connector.Manifest) bool {
	if m == nil || s.scheme.Check(m) != nil {
		return false
	}
	return s.wants(digest, m)
}

// wants says whether a namespace is of the model of the source's ranks.
func (s *source) wants(digest connector.NamespaceDigest, m *connector.Manifest) bool {
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
func (s *source) measure(ctx context.Context, every time.Duration, token string) {
	client := httpserve.Client(token)
	client.Timeout = askTimeout
	for {
		if speed, latency, err := s.ask(ctx, client); err == nil && speed > 0 {
			s.speed.store(speed)
			s.latency.store(latency)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(every):
		}
	}
}

// ask returns the measured speed and latency of the tier, 0 if they are not known.
func (s *source) ask(ctx context.Context, c *http.Client) (bytesPerS, latencyS float64, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+"/v1/status", nil)
	if err != nil {
		return 0, 0, err
	}
	resp, err := c.Do(req)
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return 0, 0, fmt.Errorf("%s/v1/status: %s", s.url, resp.Status)
	}
	var st struct {
		Tiers []struct {
			Tier         string  `json:"tier"`
			LoadBytesPer float64 `json:"load_bytes_per_s"`
			LoadLatencyS float64 `json:"load_latency_s"`
		} `json:"tiers"`
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxStatusBytes)).Decode(&st); err != nil {
		return 0, 0, fmt.Errorf("%s/v1/status: %w", s.url, err)
	}
	for _, t := range st.Tiers {
		if t.Tier == s.tier.String() {
			return t.LoadBytesPer, max(0, t.LoadLatencyS), nil
		}
	}
	return 0, 0, nil
}

// follow starts the feeds of a rank. The caller holds mu.
func (r *Router) follow(s *rankState, spec *registry.Rank) (err error) {
	if s.disk, err = r.share(prefix.Disk, spec.Node, spec.NodeURL, spec, s.pool); err != nil {
		return fmt.Errorf("node %s: %w", spec.Node, err)
	}
	if s.object, err = r.share(prefix.Object, spec.Bucket, spec.BucketURL, spec, s.pool); err != nil {
		return fmt.Errorf("bucket %s: %w", spec.Bucket, err)
	}
	if spec.Events == nil {
		return nil
	}
	e, err := feed.NewRank(feed.RankOptions{
		Endpoint: spec.Events.Endpoint, ReplayEndpoint: spec.Events.ReplayEndpoint, Bind: spec.Events.Bind, Topic: spec.Events.Topic,
		Number: spec.DPRank, Holder: s.gpu, Scheme: spec.Engine.Scheme(), BlockSize: s.pool.size, ID: s.id, Logger: r.opts.Logger.With("rank", s.id),
	}, r.index)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(r.ctx)
	s.events, s.stop, s.done = e, cancel, make(chan struct{})
	go func() {
		defer close(s.done)
		if err := e.Run(ctx); err != nil {
			r.opts.Logger.Error("a rank's events cannot be followed: its GPU's blocks do not count", "rank", s.id, "error", err,
				"remedy", "check events.endpoint; with bind it must be an address of this machine that is free")
		}
	}()
	return nil
}

// errNoURL is of a node or bucket that no rank says the URL of.
var errNoURL = errors.New("no rank gives its URL")

func otherURL(theirs, url string) error {
	return fmt.Errorf("%w: its URL is %s on other ranks, not %s", ErrMismatch, theirs, url)
}

func keyOf(tier prefix.Tier, id string, spec *registry.Rank) sourceKey {
	return sourceKey{tier: tier, id: id, model: spec.Model, cacheModel: spec.CacheModel, namespace: spec.Namespace}
}

// share returns the source of a node or bucket, for one more rank of a pool. Nil is none. The caller holds mu.
func (r *Router) share(tier prefix.Tier, id, url string, spec *registry.Rank, p *pool) (*source, error) {
	if id == "" {
		return nil, nil
	}
	key := keyOf(tier, id, spec)
	if from := r.sources[key]; from != nil && url == "" {
		url = from.url
	}
	if url == "" {
		if url = r.urlOf(tier, id); url == "" {
			return nil, errNoURL
		}
	}
	if from := r.sources[key]; from != nil {
		if from.url != url {
			return nil, otherURL(from.url, url)
		}
		from.users++
		return from, nil
	}
	from := &source{
		sourceKey: key, url: url, scheme: p.scheme, users: 1,
		holders: map[connector.NamespaceDigest]prefix.Holder{},
	}
	ctx, cancel := context.WithCancel(r.ctx)
	from.stop = cancel
	f, err := feed.NewResidency(feed.ResidencyOptions{
		URL: url + "/v1/residency", Tier: tier.String(), Scheme: from.scheme, BlockSize: p.size, Logger: r.opts.Logger,
		Client: httpserve.Client(r.opts.NodeToken), Wanted: from.wants,
		Holder: func(digest connector.NamespaceDigest, m *connector.Manifest) (feed.Holder, bool) {
			return r.holderOf(from, digest, m)
		},
	}, r.index)
	if err != nil {
		cancel()
		return nil, err
	}
	from.feed = f
	from.done.Go(func() { _ = f.Run(ctx) }) // tries until it is stopped
	from.done.Go(func() { from.measure(ctx, r.opts.NodeInterval, r.opts.NodeToken) })
	r.sources[key] = from
	return from, nil
}

// urlOf is the URL that other ranks give for a node or bucket. The caller holds mu.
func (r *Router) urlOf(tier prefix.Tier, id string) string {
	for key, from := range r.sources {
		if key.tier == tier && key.id == id {
			return from.url
		}
	}
	return ""
}

// holderOf is where a source's feed puts the blocks of a namespace. A new one is shown to decisions at
// once. It is called by the feed.
func (r *Router) holderOf(from *source, digest connector.NamespaceDigest, m *connector.Manifest) (prefix.Holder, bool) {
	if !from.accepts(digest, m) {
		return 0, false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sources[from.sourceKey] != from {
		return 0, false
	}
	h, added, err := from.holder(r.index, digest, m)
	if err == nil && added {
		if n := len(from.holderList()); n > 1 {
			r.opts.Logger.Warn("a store has several namespaces of a model, and all of them count as what its engines can load",
				"node", from.id, "model", from.model, "namespaces", n, "newest", digest.String(),
				"remedy", "give the ranks' namespace: that of the engines in /v1/status of the node's kvconnd")
		}
		if p := r.pools[from.model]; p != nil {
			err = r.refresh(p)
		}
	}
	if err != nil {
		r.opts.Logger.Error("a store's blocks cannot be followed", "node", from.id, "model", from.model, "error", err)
		return 0, false
	}
	return h, true
}

// release ends the feeds of a rank that no decision sees any more and gives its holders back. The caller
// holds admin and not mu, which feeds may be waiting for.
func (r *Router) release(s *rankState) {
	if s.stop != nil {
		s.stop()
		<-s.done
	}
	r.index.RemoveHolder(s.gpu)
	r.mu.Lock()
	ended := r.unshare(s)
	r.mu.Unlock()
	for _, from := range ended {
		from.end(r.index)
	}
}

// unfollow takes back what follow did for a rank that was never shown, and its holder once no event can
// reach it any more: another rank may get its number. The caller holds mu; its sources end by themselves.
func (r *Router) unfollow(s *rankState) {
	if s.stop == nil {
		r.index.RemoveHolder(s.gpu)
	} else {
		s.stop()
		r.running.Go(func() error {
			<-s.done
			r.index.RemoveHolder(s.gpu)
			return nil
		})
	}
	for _, from := range r.unshare(s) {
		r.running.Go(func() error { from.end(r.index); return nil })
	}
}

// unshare takes a rank off its sources and returns those that nobody uses any more. The caller holds mu.
func (r *Router) unshare(s *rankState) (ended []*source) { return r.leave([]*source{s.disk, s.object}) }

// leave takes a user off each of the sources, some may be nil, and returns those that nobody uses any more. The
// caller holds mu.
func (r *Router) leave(list []*source) (ended []*source) {
	for _, from := range list {
		if from == nil {
			continue
		}
		if from.users--; from.users == 0 {
			delete(r.sources, from.sourceKey)
			ended = append(ended, from)
		}
	}
	return ended
}

// end stops a source's feed and gives its holders back.
func (s *source) end(x *prefix.Index) {
	s.stop()
	s.done.Wait()
	for _, h := range s.holderList() {
		x.RemoveHolder(h)
	}
}
