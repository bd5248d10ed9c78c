package feed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvconn/kvconn/internal/sleep"
	"github.com/kvconn/kvconn/internal/zmtp"
)

// maxReplayBatches bounds one replay; engines keep 10,000.
const maxReplayBatches = 1 << 22

// replayTimeout bounds the wait for each message of a replay.
const replayTimeout = 5 * time.Second

var (
	errOtherProcess = errors.New("the engine is another process than before")
	errReplayOrder  = errors.New("a replay that is not in order")
	errReplayShort  = errors.New("the replay ended before a batch that was heard")
	errReplayOther  = errors.New("the replay has another batch than was heard: is its endpoint another engine's?")
)

// recover brings the rank up to date by a replay: from the last batch on if the engine still has that
// very batch, else from the beginning with the rank cleared. rebuild, unless empty, is why nothing that is
// known may be kept. It reports false if the engine has no replays or this one failed: then what is known is
// as before, or nothing if a part was replayed, the caller resyncs if it knows of missing batches, and another replay
// is due.
func (f *Rank) recover(ctx context.Context, rebuild string) bool {
	if f.replayEndpoint == "" || f.repair.replayPauses(time.Now()) || !sleep.For(ctx, f.opts.RecoverInterval-time.Since(f.recoveredAt), nil) {
		return false
	}
	f.replaying = true
	f.publishStats() // a replay may take a while
	defer func() { f.replaying, f.recoveredAt = false, time.Now() }()
	full, err := f.replay(ctx, rebuild)
	if err != nil {
		if ctx.Err() == nil {
			f.stats.ReplayFailures++
			f.stats.Error = err.Error()
			f.log.Warn("the engine's KV events could not be replayed", "replay_endpoint", f.replayEndpoint, "error", err)
			f.repair.replayFailed(err, time.Now())
		}
		return false
	}
	f.repair.replayed(full || f.progress.extent == whole)
	f.stats.Replays++
	f.stats.Error = ""
	f.orphans = f.ingest.orphans // those of the replay would be so again
	return true
}

// replay reports whether it has brought all that the engine has. If it fails in the middle, nothing is known
// afterwards: what was removed by the batches that it lacks would count as held.
func (f *Rank) replay(ctx context.Context, rebuild string) (full bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, f.opts.ReplayMax)
	defer cancel()
	before := f.stats.ReplayedBatches
	full, err = f.replayRest(ctx, rebuild)
	// Engines drop batches of a replay that is not read as fast as it is sent, so what is missing is asked for again.
	for brought := before; ; {
		if err == nil && f.progress.lacks() {
			err = errReplayShort
		}
		if !resumable(err) || f.stats.ReplayedBatches == brought {
			break
		}
		brought = f.stats.ReplayedBatches
		last, _ := f.progress.last()
		err = f.withReplay(ctx, func(c *zmtp.Conn) error { return f.replayAfter(c, last) })
	}
	if err != nil && f.stats.ReplayedBatches != before {
		f.resync("the replay broke off")
	}
	return full, err
}

// resumable reports whether a replay that failed may go on after its last batch.
func resumable(err error) bool {
	return err != nil && !errors.Is(err, errOtherProcess) && !errors.Is(err, errReplayOther)
}

// replayRest replays what follows the last batch, or else everything.
func (f *Rank) replayRest(ctx context.Context, rebuild string) (full bool, err error) {
	if last, ok := f.progress.last(); ok && rebuild == "" {
		err := f.withReplay(ctx, func(c *zmtp.Conn) error { return f.replayAfter(c, last) })
		if !errors.Is(err, errOtherProcess) {
			return false, err
		}
		f.stats.Restarts++
		rebuild = errOtherProcess.Error()
	}
	if rebuild == "" {
		rebuild = "the replay begins with the first batch"
	}
	// On connections of their own: what is left of one replay may still be arriving.
	if f.progress.hasTaken {
		if err := f.withReplay(ctx, f.probe); err != nil {
			return false, err
		}
	}
	return true, f.withReplay(ctx, func(c *zmtp.Conn) error { return f.replayAll(c, rebuild) })
}

func (f *Rank) withReplay(ctx context.Context, do func(*zmtp.Conn) error) error {
	c, err := zmtp.DialDealer(ctx, f.replayEndpoint)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	if err = do(c); err != nil && ctx.Err() != nil {
		return fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	return err
}

// replayAfter replays what follows batch last, which the engine must still have as it was.
func (f *Rank) replayAfter(c *zmtp.Conn, last batchID) error {
	begun := false
	err := f.replayFrom(c, last.seq, func(seq uint64, payload []byte) error {
		switch {
		case begun:
		case batchID{seq, xxh3.Hash(payload)} == last:
			begun = true
			f.progress.confirmed()
			return nil
		case seq > last.seq: // the engine has forgotten the batch: all it still has is what comes now
			begun = true
			f.resync("the engine's replay does not reach back far enough")
		default:
			return errOtherProcess
		}
		return f.replayed(seq, payload)
	})
	if err == nil && !begun { // nothing of that number was ever published
		return errOtherProcess
	}
	return err
}

// probe fails if the engine whose replays they are is not the one that is heard: then nothing that is known is worth
// clearing for them.
func (f *Rank) probe(c *zmtp.Conn) error {
	want, found := f.progress.taken, errReplayShort
	err := c.Replay(want.seq, replayTimeout, func(seq uint64, payload []byte) bool {
		found = nil
		if seq < want.seq || seq == want.seq && xxh3.Hash(payload) != want.sum {
			found = errReplayOther
		}
		return false
	})
	return cmp.Or(err, found)
}

// replayAll replays all that the engine has. The rank is cleared once the first batch is there: an engine that keeps
// none, or does not answer, costs nothing that is known.
func (f *Rank) replayAll(c *zmtp.Conn, why string) error {
	begun := false
	err := f.replayFrom(c, 0, func(seq uint64, payload []byte) error {
		if !begun {
			begun = true
			f.resync(why)
		}
		return f.replayed(seq, payload)
	})
	switch {
	case err != nil || begun:
		return err
	case f.progress.hasHeard: // it has published, and keeps nothing
		return errReplayShort
	}
	f.resync(why)
	f.progress.nothingPublished()
	return nil
}

// replayed applies a replayed batch.
func (f *Rank) replayed(seq uint64, payload []byte) error {
	if f.progress.has(seq) || f.progress.misses(seq) {
		return fmt.Errorf("%w: batch %d, want %d", errReplayOrder, seq, f.progress.next)
	}
	sum := xxh3.Hash(payload)
	if f.progress.hasHeard && seq == f.progress.heard.seq && sum != f.progress.heard.sum {
		return errReplayOther
	}
	f.stats.ReplayedBatches++
	f.apply(seq, sum, payload)
	return nil
}

// replayFrom asks for the batches from start on and hands them to each, until it fails.
func (f *Rank) replayFrom(c *zmtp.Conn, start uint64, each func(seq uint64, payload []byte) error) error {
	var failed error
	n := 0
	err := c.Replay(start, replayTimeout, func(seq uint64, payload []byte) bool {
		if n++; n > maxReplayBatches {
			failed = fmt.Errorf("%w: more than %d batches", errReplayOrder, maxReplayBatches)
		} else {
			failed = each(seq, payload)
		}
		return failed == nil
	})
	return errors.Join(failed, err)
}
