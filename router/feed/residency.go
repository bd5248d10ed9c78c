package feed

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/kvconn/kvconn/connector"
)

// Residency follows what one kvconnd's store holds.
type Residency struct {
	opts  ResidencyOptions
	index Index

	// mu is held while a frame is applied, which takes seconds at a large snapshot's end; it is given back
	// by unlock.
	mu    sync.Mutex
	roots roots
	// views are the namespaces by the store's numbers; nil for those of no interest.
	views   map[uint32]*view
	loading bool
	// snapshot counts the records of the one that is being read.
	snapshot uint64
	// ended says that Run is over, and the holders may be another's.
	ended bool
	stats ResidencyStats
}

// NewResidency makes a feed that writes to index.
func NewResidency(o ResidencyOptions, index Index) (*Residency, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	return &Residency{
		opts: o, index: index,
		roots: newRoots(connector.RootKey(o.BlockSize, connector.Scope{})),
		stats: ResidencyStats{URL: o.URL, State: StateConnecting},
	}, nil
}

// NoteRoot says that prompts begin at root, the root key of a scope (connector.RootKey). The plain scope's
// is known. A store's records do not say whether the block before theirs is a root, so that the prompts of
// a scope wait until the router has met it: call this before a prompt with a salt or an adapter is looked
// up. It never waits for the stream: while a frame is being applied, what waited for the root is placed
// after that. It may be called from any goroutine.
func (f *Residency) NoteRoot(root connector.Key) {
	if f.roots.note(root) && f.mu.TryLock() {
		f.unlock()
	}
}

// unlock gives mu back, after the roots that were noted meanwhile have been acted on.
func (f *Residency) unlock() {
	for {
		for _, root := range f.roots.take() {
			for _, v := range f.views {
				if v != nil {
					v.noteRoot(root)
				}
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
		if v != nil {
			s.Namespaces++
			s.Incomplete += v.shards.Incomplete()
			s.Waiting += len(v.waiting) + len(v.snapshot)
			s.Dropped += v.dropped
			s.Refused += v.refused
		}
	}
	return s
}

// Run follows the store until ctx ends. A store that cannot be reached is tried for ever; its blocks are
// forgotten after a while.
func (f *Residency) Run(ctx context.Context) error {
	retry := backoff{least: f.opts.ReconnectMin, most: f.opts.ReconnectMax}
	lost := time.NewTimer(f.opts.ForgetAfter) // does nothing until there is something to lose
	told := false                             // the log has it that there is no connection
	defer func() {
		lost.Stop()
		f.mu.Lock()
		f.ended = true
		f.unlock()
	}()
	for {
		err := f.follow(ctx, func() {
			told = false
			lost.Stop()
			retry.reset()
		})
		if ctx.Err() != nil {
			return nil
		}
		f.mu.Lock()
		if f.stats.Connected {
			f.opts.Logger.Warn("lost a store's residency; trying again until it is back", "url", f.opts.URL, "error", err)
			lost = time.AfterFunc(f.opts.ForgetAfter, f.forget)
		} else if !told {
			f.opts.Logger.Warn("a store's residency cannot be reached; trying again until it is there", "url", f.opts.URL, "error", err)
		}
		told = true
		f.stats.Connected, f.stats.State, f.stats.Error = false, StateConnecting, err.Error()
		f.unlock()
		if !sleep(ctx, retry.take()) {
			return nil
		}
	}
}

// forget clears all holders, unless the store is back.
func (f *Residency) forget() {
	f.mu.Lock()
	defer f.unlock()
	if f.stats.Connected || f.ended {
		return
	}
	f.opts.Logger.Warn("a store cannot be reached and its blocks are forgotten", "url", f.opts.URL)
	f.forgetLocked()
}

func (f *Residency) forgetLocked() {
	for _, v := range f.views {
		if v != nil {
			f.index.Clear(v.holder)
			f.stats.Dropped += v.dropped
			f.stats.Refused += v.refused
		}
	}
	f.views = nil
	f.stats.Epoch, f.stats.LastSeq = 0, 0
}

// follow reads one connection's stream to its end. It calls connected at its beginning.
func (f *Residency) follow(ctx context.Context, connected func()) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	idle := time.AfterFunc(f.opts.IdleTimeout, func() {
		cancel(fmt.Errorf("nothing was heard for %v", f.opts.IdleTimeout))
	})
	defer idle.Stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, f.address(), nil)
	if err != nil {
		return err
	}
	resp, err := f.opts.Client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 256))
		return fmt.Errorf("%s: %s: %q", f.opts.URL, resp.Status, text)
	}
	d := frameReader{r: bufio.NewReaderSize(resp.Body, 64<<10)}
	for first := true; ; first = false {
		body, err := d.next()
		if err != nil {
			f.broken(err)
			if cause := context.Cause(ctx); cause != nil {
				err = cause
			}
			return fmt.Errorf("read the residency stream: %w", err)
		}
		idle.Reset(f.opts.IdleTimeout)
		if err := f.frame(body, first); err != nil {
			f.broken(err)
			return err
		}
		if first {
			connected()
		}
	}
}

// address is the URL, and where to resume if that is known.
func (f *Residency) address() string {
	f.mu.Lock()
	defer f.unlock()
	if f.stats.Epoch == 0 || f.loading {
		return f.opts.URL
	}
	u, err := url.Parse(f.opts.URL)
	if err != nil {
		return f.opts.URL
	}
	q := u.Query()
	q.Set("epoch", strconv.FormatUint(f.stats.Epoch, 10))
	q.Set("after", strconv.FormatUint(f.stats.LastSeq, 10))
	u.RawQuery = q.Encode()
	return u.String()
}

// broken makes the next connection begin with a snapshot if err says that this one cannot be gone on with.
func (f *Residency) broken(err error) {
	f.mu.Lock()
	defer f.unlock()
	switch {
	case errors.Is(err, errResidencyGap):
		f.stats.Gaps++
	case errors.Is(err, errResidencyFrame):
		f.stats.Malformed++
	default:
		return
	}
	f.forgetLocked()
}
