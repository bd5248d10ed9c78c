package feed

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvconn/kvconn/internal/zmtp"
	"github.com/kvconn/kvconn/router/event"
)

// rankFeed follows one rank: its reader's goroutine receives, its own applies. All fields below mu belong
// to the latter.
type rankFeed struct {
	opts           *EngineOptions
	rank           Rank
	reader         reader
	replayEndpoint string
	log            *slog.Logger

	mu     sync.Mutex
	shared RankStats // a copy of stats for others

	ingest *Ingest
	seq    sequence
	// lastSum is the checksum of the last batch applied. A batch has its time in it, so that a process
	// that still has the same one under its number is the same process.
	lastSum uint64
	// complete says that everything since the engine's start is applied.
	complete bool
	// dirty is why the rank has to be rebuilt, nil if it has not.
	dirty error
	// refused is why the rank's events cannot be used.
	refused error
	// told says that the log has it that there is no connection.
	told bool
	// rebuilds delays rebuilding while events stay bad; rebuildAt is when it may be done next.
	rebuilds    backoff
	rebuildAt   time.Time
	recoveredAt time.Time
	// orphans are the unknown parents up to the last rebuild.
	orphans uint64
	stats   RankStats
}

// run follows the rank until ctx ends.
func (f *rankFeed) run(ctx context.Context) error {
	if f.opts.Bind {
		l, err := zmtp.Listen(ctx, f.reader.endpoint)
		if err != nil {
			return fmt.Errorf("data-parallel rank %d: %w", f.rank.Number, err)
		}
		defer func() { _ = l.Close() }()
		f.reader.listener = l
	}
	ctx, cancel := context.WithCancel(ctx)
	var reading sync.WaitGroup
	reading.Go(func() { f.reader.run(ctx) })
	defer reading.Wait()
	defer cancel()
	tick := time.NewTicker(max(f.opts.RecoverInterval, 10*time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case i := <-f.reader.queue:
			f.item(ctx, i)
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		f.settle(ctx)
		f.publishStats()
	}
}

// item applies what the reader handed on.
func (f *rankFeed) item(ctx context.Context, i item) {
	switch {
	case i.frame != nil:
		f.live(ctx, i.frame)
		f.reader.done(i.frame)
	case i.connected && i.err != nil:
		f.dirty = i.err
	case i.connected:
		f.log.Info("connected to the engine's KV events")
		f.told = false
		f.seq.connected()
		f.stats.Error = ""
		f.rebuildAt = time.Time{} // that a replay failed on another connection is no reason not to try
		if f.replayEndpoint != "" && !f.recover(ctx) && f.seq.unsure {
			f.resync("nothing shows that the engine is the same process")
		}
	default:
		switch {
		case f.stats.Connected:
			f.log.Warn("lost the engine's KV events; trying again until they are back", "error", i.err)
			if f.replayEndpoint == "" { // nothing will ever show that it is the same process
				f.resync("the connection was lost")
			}
		case !f.told: // else it is one more attempt in vain
			f.log.Warn("the engine's KV events cannot be reached; trying again until they are there", "error", i.err)
		}
		f.told = true
		f.stats.Error = i.err.Error()
	}
	f.stats.Connected = i.frame != nil || i.connected
}

// live applies a batch that came over the connection.
func (f *rankFeed) live(ctx context.Context, b *frame) {
	switch v := f.seq.live(b.seq); v {
	case duplicate:
		f.stats.Duplicates++
		return
	case gap:
		if f.seq.known {
			f.stats.Gaps++
		}
		if f.replayEndpoint == "" || !f.recover(ctx) {
			f.resync("batches are missing")
		}
	case restarted:
		f.stats.Restarts++
		f.resync("the engine was started anew")
		if b.seq > 0 && f.replayEndpoint != "" {
			f.recover(ctx)
		}
	}
	switch {
	case f.seq.known && b.seq < f.seq.next:
		return // the replay had it
	case !f.seq.known:
		f.complete = b.seq == 0
	case b.seq > f.seq.next:
		f.resync("the replay ended early")
		f.dirty = errReplayShort // a later one may have all
	}
	if err := f.apply(b.seq, b.payload()); errors.Is(err, event.ErrMalformed) {
		f.log.Warn("a batch of KV events is malformed", "seq", b.seq, "error", err)
		f.dirty = err
	}
}

// apply applies a batch and makes it the last one.
func (f *rankFeed) apply(seq uint64, payload []byte) error {
	f.seq.applied(seq)
	f.lastSum = xxh3.Hash(payload)
	f.stats.LastSeq = int64(seq)
	if f.refused != nil {
		return nil
	}
	b, err := f.ingest.Batch(payload)
	if b.HasRank {
		f.stats.EngineRank = b.Rank
	}
	if errors.Is(err, ErrBlockSize) {
		f.ingest.Clear()
		f.refused = err
		f.log.Error("the engine's KV events are refused: no prefix would ever match", "error", err)
	}
	return err
}

// resync forgets what the rank holds, because it could be wrong, and goes on with what comes.
func (f *rankFeed) resync(why string) {
	if f.seq.known {
		f.stats.Resyncs++
		f.log.Warn("the rank's KV blocks are forgotten and rebuilt", "reason", why)
	}
	f.ingest.Clear()
	f.seq.forget()
	f.complete, f.refused, f.stats.LastSeq = false, nil, -1
	f.orphans = f.ingest.orphans
}

// settle does what the last item has left to do once the queue allows for it.
func (f *rankFeed) settle(ctx context.Context) {
	if f.dirty == nil && f.ingest.orphans-f.orphans >= uint64(f.opts.UnknownParentsMax) {
		f.dirty = fmt.Errorf("%d events with unknown parents", f.ingest.orphans-f.orphans)
	}
	now := time.Now()
	if f.dirty != nil && !now.Before(f.rebuildAt) {
		if now.Sub(f.rebuildAt) > maxRebuildInterval {
			f.rebuilds.reset()
		}
		f.rebuildAt = now.Add(f.rebuilds.take())
		why := f.dirty
		f.dirty = nil
		switch {
		case f.replayEndpoint != "" && f.recoverFrom(ctx, why.Error()):
		case errors.Is(why, errReplay): // what is known is true as far as it goes
		default:
			f.resync(why.Error())
		}
	}
	// What was dropped last shows in no later number until the engine publishes again.
	if len(f.reader.queue) == 0 && f.reader.lost.Swap(false) {
		if f.replayEndpoint == "" || !f.recover(ctx) {
			f.resync("batches were dropped")
		}
	}
}

// state is the state as it is now.
func (f *rankFeed) state() State {
	switch {
	case f.refused != nil:
		return StateRefused
	case !f.reader.connected.Load():
		return StateConnecting
	case f.complete && f.dirty == nil && !f.seq.unsure:
		return StateSynced
	}
	return StateStale
}

// publishStats lets others see the statistics.
func (f *rankFeed) publishStats() {
	f.stats.State = f.state()
	f.stats.IngestStats = f.ingest.Stats()
	s := f.stats
	if f.refused != nil {
		s.Error = f.refused.Error()
	}
	f.mu.Lock()
	f.shared = s
	f.mu.Unlock()
}

func (f *rankFeed) statsNow() RankStats {
	f.mu.Lock()
	s := f.shared
	f.mu.Unlock()
	s.Connected = f.reader.connected.Load()
	s.Connects, s.Overflows, s.BadFrames = f.reader.connects.Load(), f.reader.overflows.Load(), f.reader.badFrames.Load()
	return s
}
