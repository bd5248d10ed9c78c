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

// Rank follows the KV cache events of one data-parallel rank of an engine. Its reader's goroutine receives
// batches, the goroutine of Run applies them.
type Rank struct {
	opts           RankOptions
	reader         reader
	replayEndpoint string
	log            *slog.Logger

	mu     sync.Mutex
	shared RankStats // a copy of stats for other goroutines

	// The rest belongs to Run.
	ingest   *Ingest
	progress progress
	repair   repair
	// refused is why the rank's events cannot be used, nil if they can.
	refused error
	logged  bool // that there is no connection
	// Lines that could come with each batch.
	cleared, malformed, refusal rarely
	// lostAt is when the connection was lost, zero while there is one and once the block size was told.
	lostAt      time.Time
	recoveredAt time.Time
	// orphans are the events with unknown parents up to the last rebuild.
	orphans   uint64
	replaying bool
	said      int // the block size that the router was told last
	stats     RankStats
}

// NewRank makes a feed that writes to index.
func NewRank(o RankOptions, index Index) (*Rank, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	events, replay, err := o.endpoints()
	if err != nil {
		return nil, err
	}
	f := &Rank{
		opts: o, ingest: NewIngest(o.Scheme, o.BlockSize.Tokens(), o.Holder, index), replayEndpoint: replay,
		log:    o.Logger.With("dp_rank", o.Number, "endpoint", events),
		repair: newRepair(o.RecoverInterval),
		stats:  RankStats{Rank: o.Number, Endpoint: events, State: StateConnecting, LastSeq: -1, EngineRank: -1},
	}
	f.reader = reader{opts: &f.opts, endpoint: events, queue: make(chan item, o.QueueBatches)}
	f.publishStats()
	return f, nil
}

// Run follows the rank until ctx ends; it keeps trying to reach it. It fails only if an endpoint cannot be
// bound. What the rank holds stays in the index: its owner removes the holder.
func (f *Rank) Run(ctx context.Context) error {
	defer f.opts.BlockSize.Forget(f)
	if f.opts.Bind {
		l, err := zmtp.Listen(ctx, f.reader.endpoint)
		if err != nil {
			return fmt.Errorf("data-parallel rank %d: %w", f.opts.Number, err)
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

func (f *Rank) item(ctx context.Context, i item) {
	switch {
	case i.frame != nil:
		f.live(ctx, i.frame)
		f.reader.done(i.frame)
	case !i.connected:
		f.disconnected(i.err)
	case i.err != nil:
		f.repair.bad.why = i.err
	default:
		f.connected(ctx)
	}
}

func (f *Rank) connected(ctx context.Context) {
	f.log.Info("connected to the engine's KV events")
	f.stats.Connected, f.stats.Error = true, ""
	f.lostAt = time.Time{}
	f.opts.BlockSize.EngineConnected(f, true)
	f.progress.connected()
	f.repair.connected()
	if !f.recover(ctx, "") && f.progress.extent != blank {
		f.resync("nothing shows that the engine is the same process and has published nothing since")
	}
}

func (f *Rank) disconnected(err error) {
	switch {
	case f.stats.Connected:
		f.log.Warn("lost the engine's KV events; trying again until they are back", "error", err)
		if f.replayEndpoint == "" { // nothing will ever show that it is the same process
			f.resync("the connection was lost")
		}
	case !f.logged: // else it is one more attempt that failed
		f.log.Warn("the engine's KV events cannot be reached; trying again until they are there", "error", err)
	}
	f.logged = true
	if f.stats.Connected {
		f.lostAt = time.Now()
	}
	f.stats.Connected, f.stats.Error = false, err.Error()
}

func (f *Rank) live(ctx context.Context, b *frame) {
	sum := xxh3.Hash(b.payload())
	switch f.progress.judge(b.seq, sum) {
	case duplicate:
		f.stats.Duplicates++
		f.progress.took()
		return
	case gap:
		if f.progress.extent != blank {
			f.stats.Gaps++
		}
		f.missing(ctx)
	case restarted:
		f.stats.Restarts++
		f.resync(errOtherProcess.Error())
		if b.seq > 0 && f.replayEndpoint != "" {
			f.repair.bad.why = errOtherProcess // not at once: two engines on one endpoint would do so all the time
		}
	}
	defer f.progress.took()
	if f.progress.has(b.seq) { // the replay brought it
		return
	}
	f.apply(b.seq, sum, b.payload())
	if f.progress.extent == whole { // it was the first one
		f.repair.replayed(true)
	}
}

// missing has what was published before the last batch replayed, or forgets what is known. If the rank is to be rebuilt in a
// while for what was wrong before, that will do: it is not rebuilt more often than that.
func (f *Rank) missing(ctx context.Context) {
	pending := f.repair.bad.why
	if pending == nil && f.recover(ctx, "") {
		return
	}
	f.resync("batches are missing")
	if f.replayEndpoint != "" {
		f.repair.bad.why = pending
	}
}

// apply applies the next batch. If it is malformed, what it said is lost, and all is forgotten that it could have
// removed: a replay would bring no other.
func (f *Rank) apply(seq, sum uint64, payload []byte) {
	f.progress.applied(seq, sum)
	f.stats.LastSeq = int64(seq)
	if f.refused != nil {
		return
	}
	before := f.ingest.stats
	b, err := f.ingest.Batch(payload)
	if f.learn() { // so far, none of the engine's blocks had the size that was expected
		f.ingest.stats = before
		b, err = f.ingest.Batch(payload)
	}
	if b.HasRank {
		f.stats.EngineRank = b.Rank
	}
	switch {
	case errors.Is(err, ErrBlockSize):
		f.ingest.Clear()
		f.refused = err
		if times := f.refusal.due(time.Now()); times > 0 {
			f.log.Error("the engine's KV events are refused: no prefix would ever match", "error", err, "times", times)
		}
	case errors.Is(err, event.ErrMalformed):
		if times := f.malformed.due(time.Now()); times > 0 {
			f.log.Warn("a batch of KV events is malformed", "seq", seq, "error", err, "times", times)
		}
		f.resync("a batch is malformed")
		f.progress.unreadable(seq, sum)
		f.stats.LastSeq = int64(seq)
	}
}

// learn tells the router the block size that the engine says, and reports whether that is now what to expect, which it was
// not before.
func (f *Rank) learn() bool {
	said := f.ingest.said
	if said == 0 {
		return false
	}
	if said != f.said {
		f.said = said
		f.opts.BlockSize.EngineSays(f, f.opts.ID, said)
	}
	if said == f.ingest.blockSize || said != f.opts.BlockSize.Tokens() {
		return false
	}
	f.log.Info("the engine's block size is learnt", "block_size", said)
	f.ingest.setBlockSize(said)
	return true
}

// resize begins again with blocks of another size, if the router expects that now.
func (f *Rank) resize(ctx context.Context) {
	tokens := f.opts.BlockSize.Tokens()
	if tokens == f.ingest.blockSize {
		return
	}
	f.ingest.setBlockSize(tokens)
	const why = "the model's blocks have another size"
	if !f.reader.connected.Load() || !f.recover(ctx, why) {
		f.resync(why)
	}
}

// resync forgets what the rank holds, because it could be wrong, and goes on with what comes.
func (f *Rank) resync(why string) {
	if f.progress.extent != blank {
		f.stats.Resyncs++
		if times := f.cleared.due(time.Now()); times > 0 {
			f.log.Warn("the rank's KV blocks are forgotten and rebuilt", "reason", why, "times", times)
		}
	}
	f.ingest.Clear()
	f.progress.forget()
	f.repair.forgotten()
	f.refused, f.stats.LastSeq = nil, -1
	f.orphans = f.ingest.orphans
}

// settle does what is left to do between two items.
func (f *Rank) settle(ctx context.Context) {
	if !f.lostAt.IsZero() && time.Since(f.lostAt) >= f.opts.VoteGrace {
		f.lostAt = time.Time{}
		f.opts.BlockSize.EngineConnected(f, false)
	}
	f.resize(ctx)
	if f.progress.extent != whole { // parents may have been stored before what is known
		f.orphans = f.ingest.orphans
	}
	if n := f.ingest.orphans - f.orphans; f.repair.bad.why == nil && n >= uint64(f.opts.UnknownParentsMax) {
		f.repair.bad.why = fmt.Errorf("%d events with unknown parents", n)
	}
	if f.reader.connected.Load() {
		why, bad := f.repair.due(time.Now())
		// What is known of another process is true, if little.
		if why != nil && !f.recover(ctx, why.Error()) && bad && !errors.Is(why, errOtherProcess) {
			f.resync(why.Error())
		}
	}
	// What was dropped last shows in no later number until the engine publishes again.
	if len(f.reader.queue) == 0 && f.reader.lost.Swap(false) && !f.recover(ctx, "") {
		f.resync("batches were dropped")
	}
}

// state is the state as it is now.
func (f *Rank) state() State {
	switch {
	case f.refused != nil:
		return StateRefused
	case !f.reader.connected.Load():
		return StateConnecting
	case f.progress.doubted || f.repair.why() != nil || f.replaying:
		return StateStale
	case f.progress.extent == whole:
		return StateSynced
	}
	return StatePartial
}

// trouble says what is wrong, if anything is.
func (f *Rank) trouble() string {
	why := f.repair.why()
	switch {
	case f.refused != nil:
		return f.refused.Error()
	case f.stats.State == StateSynced || f.stats.State == StatePartial:
		return ""
	case f.stats.Error != "":
		return f.stats.Error
	case why != nil:
		return why.Error()
	case f.replaying:
		return "the engine's KV events are being replayed"
	}
	return ""
}

func (f *Rank) publishStats() {
	f.stats.State = f.state()
	f.stats.IngestStats = f.ingest.Stats()
	s := f.stats
	s.Error = f.trouble()
	f.mu.Lock()
	f.shared = s
	f.mu.Unlock()
}

// Stats are the state and what was counted. It may be called from any goroutine.
func (f *Rank) Stats() RankStats {
	f.mu.Lock()
	s := f.shared
	f.mu.Unlock()
	s.Connected = f.reader.connected.Load()
	s.Connects, s.Overflows, s.BadFrames = f.reader.connects.Load(), f.reader.overflows.Load(), f.reader.badFrames.Load()
	return s
}
