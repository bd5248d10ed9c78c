package feed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"sync"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/backoff"
	"github.com/kvconn/kvconn/router/feed/adapters"
	"github.com/kvconn/kvconn/store/residency"
)

// Residency follows what one kvconnd's store holds.
type Residency struct {
	opts  ResidencyOptions
	index Index

	// mu is held while a frame is applied, which takes seconds at a large snapshot's end. Unlock it by
	// unlock.
	mu    sync.Mutex
	roots roots
	// views are the namespaces that are followed; nil before the first stream and once they are forgotten.
	// ignored are the others that the store has described since its snapshot.
	views   map[connector.NamespaceDigest]*view
	ignored map[connector.NamespaceDigest]bool
	// numbers are the namespaces as the stream's records call them; nil for those that are ignored.
	numbers map[uint32]*view
	loading bool // a snapshot
	// blockSize is that of the views; sizes counts the wanted namespaces that the store has described since its snapshot by theirs.
	blockSize int
	sizes     map[int]int
	// told is what was last said of them.
	told map[int]int
	// ended says that Run is over, and the holders may be another's.
	ended bool
	stats ResidencyStats
	// adapters has its own lock.
	adapters adapters.Table[*view]
}

// NewResidency makes a feed that writes to index.
func NewResidency(o ResidencyOptions, index Index) (*Residency, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	tokens := o.BlockSize.Tokens()
	return &Residency{
		opts: o, index: index, blockSize: tokens,
		roots: newRoots(o.Scheme.StoreRoot(tokens)),
		stats: ResidencyStats{URL: o.URL, Tier: o.Tier, State: StateConnecting},
	}, nil
}

// NoteRoot says that prompts begin at root, the root key of a scope (connector.RootKey) where keys are kvconn's own. The plain scope's
// is known. A store's records do not say whether their parent is a root, so the prompts of a scope wait until
// the router has met it: call this before looking up a prompt with a salt or an adapter. It never waits for
// the stream: if a frame is being applied, what waited for the root is placed after that. It may be called
// from any goroutine.
func (f *Residency) NoteRoot(root connector.Key) {
	if f.roots.note(root) && f.mu.TryLock() {
		f.unlock()
	}
}

// unlock unlocks mu after acting on the roots that were noted meanwhile.
func (f *Residency) unlock() {
	for {
		for _, root := range f.roots.take() {
			for _, v := range f.views {
				v.noteRoot(root)
			}
		}
		f.mu.Unlock()
		if !f.roots.waiting() || !f.mu.TryLock() {
			return
		}
	}
}

// Stats are the state and what was counted.
func (f *Residency) Stats() ResidencyStats {
	f.mu.Lock()
	defer f.unlock()
	s := f.stats
	for _, v := range f.views {
		s.Namespaces++
		s.Incomplete += v.shards.Incomplete()
		s.Waiting += len(v.waiting) + len(v.snapshot)
		s.Dropped += v.dropped
		s.Refused += v.refused
	}
	s.Adapters = f.adapters.Count()
	return s
}

// Run follows the store until ctx ends. It keeps trying to reach it; while it cannot, the store's blocks
// count for [ResidencyOptions].ForgetAfter.
func (f *Residency) Run(ctx context.Context) error {
	retry := backoff.Backoff{Least: f.opts.ReconnectMin, Most: f.opts.ReconnectMax}
	var lost *time.Timer
	defer func() {
		if lost != nil {
			lost.Stop()
		}
		f.mu.Lock()
		f.ended = true
		f.unlock()
		f.opts.BlockSize.Forget(f)
	}()
	for logged := false; ; logged = true {
		began := time.Now()
		err := f.follow(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, errResized) {
			f.resized()
			retry.Ended(began)
			if !retry.Wait(ctx) {
				return nil
			}
			continue
		}
		f.mu.Lock()
		switch {
		case f.stats.Connected:
			f.opts.Logger.Warn("lost a store's residency; trying again until it is back", "url", f.opts.URL, "tier", f.opts.Tier, "error", err)
			retry.Ended(began)
			if lost != nil {
				lost.Stop()
			}
			lost = time.AfterFunc(f.opts.ForgetAfter, f.forget)
		case !logged:
			f.opts.Logger.Warn("a store's residency cannot be reached; trying again until it is there", "url", f.opts.URL, "tier", f.opts.Tier, "error", err)
		}
		f.stats.Connected, f.stats.State, f.stats.Error = false, StateConnecting, err.Error()
		f.unlock()
		if !retry.Wait(ctx) {
			return nil
		}
	}
}

func (f *Residency) forget() {
	f.mu.Lock()
	defer f.unlock()
	if f.stats.Connected || f.ended {
		return
	}
	f.opts.Logger.Warn("a store cannot be reached and its blocks are forgotten", "url", f.opts.URL, "tier", f.opts.Tier)
	f.forgetLocked()
}

func (f *Residency) forgetLocked() {
	for _, v := range f.views {
		f.index.Clear(v.holder)
		f.stats.Dropped += v.dropped
		f.stats.Refused += v.refused
	}
	f.views = nil
	f.adapters.Clear()
	f.stats.Epoch, f.stats.LastSeq = 0, 0
}

// idleTimeout is how long the stream may be silent: three of its heartbeats.
const idleTimeout = 35 * time.Second

// follow reads one connection's stream to its end.
func (f *Residency) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go f.watchSize(ctx, f.opts.BlockSize.Changed(), cancel)
	idle := time.AfterFunc(idleTimeout, func() {
		cancel(fmt.Errorf("nothing was heard for %v", idleTimeout))
	})
	defer idle.Stop()
	from := f.position()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, f.opts.URL, nil)
	if err != nil {
		return err
	}
	q := req.URL.Query()
	residency.TierQuery(q, f.opts.Tier)
	if from.Epoch != 0 {
		maps.Copy(q, from.Query())
	}
	req.URL.RawQuery = q.Encode()
	resp, err := f.opts.Client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 256))
		return fmt.Errorf("%s: %s: %q", f.opts.URL, resp.Status, text)
	}
	if err := residency.CheckContentType(resp.Header.Get("Content-Type"), f.opts.Tier); err != nil {
		return fmt.Errorf("%s: %w", f.opts.URL, err)
	}
	stream := residency.NewReader(resp.Body, from)
	for {
		frame, err := stream.Next()
		if err == nil {
			idle.Reset(idleTimeout)
			err = f.apply(frame, stream.Position())
		}
		if err != nil {
			f.broken(err)
			if cause := context.Cause(ctx); cause != nil {
				err = cause
			}
			return fmt.Errorf("read the residency stream: %w", err)
		}
	}
}

// position is where the next stream can resume, zero if it must begin with a snapshot.
func (f *Residency) position() residency.Position {
	f.mu.Lock()
	defer f.unlock()
	if f.loading || f.blockSize != f.opts.BlockSize.Tokens() {
		return residency.Position{}
	}
	return residency.Position{Epoch: f.stats.Epoch, Seq: f.stats.LastSeq}
}

// broken makes the next stream begin with a snapshot if err says that this one cannot be resumed.
func (f *Residency) broken(err error) {
	f.mu.Lock()
	defer f.unlock()
	switch {
	case errors.Is(err, residency.ErrGap):
		f.stats.Gaps++
	case errors.Is(err, residency.ErrMalformed):
		f.stats.Malformed++
	default:
		return
	}
	f.forgetLocked()
}
