package feed

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvconn/kvconn/internal/zmtp"
	"github.com/kvconn/kvconn/router/event"
)

// maxReplayBatches bounds one replay; engines keep 10,000.
const maxReplayBatches = 1 << 22

var (
	errOtherProcess = errors.New("the engine is another process than before")
	errReplayOrder  = errors.New("a replay that is not in order")
	errReplay       = errors.New("the replay failed")
	errReplayShort  = errors.New("the replay ended before the batch that showed the gap")
)

// recover brings the rank up to date by a replay: from the last batch on if the engine still has that
// very batch, else from the beginning with the rank cleared. It reports false if the replay failed; then
// what is known is as before or partly replayed, the caller resyncs, and a rebuild is due.
func (f *rankFeed) recover(ctx context.Context) bool { return f.recoverFrom(ctx, "") }

// recoverFrom is recover; if rebuild is not empty it is why nothing of what is known is kept.
func (f *rankFeed) recoverFrom(ctx context.Context, rebuild string) bool {
	if errors.Is(f.dirty, errReplay) && time.Now().Before(f.rebuildAt) {
		return false // it failed just now
	}
	if !sleep(ctx, f.opts.RecoverInterval-time.Since(f.recoveredAt)) {
		return false
	}
	defer func() { f.recoveredAt = time.Now() }()
	if err := f.replay(ctx, rebuild); err != nil {
		if ctx.Err() == nil {
			f.stats.ReplayFailures++
			f.stats.Error = err.Error()
			f.log.Warn("the engine's KV events could not be replayed", "replay_endpoint", f.replayEndpoint, "error", err)
			f.dirty = fmt.Errorf("%w: %w", errReplay, err)
			f.rebuildAt = time.Now().Add(f.rebuilds.take())
		}
		return false
	}
	if errors.Is(f.dirty, errReplay) && f.complete {
		f.dirty = nil
	}
	f.stats.Replays++
	f.stats.Error = ""
	f.orphans = f.ingest.orphans // those of the replay would be so again
	return true
}

func (f *rankFeed) replay(ctx context.Context, rebuild string) error {
	if rebuild == "" && f.seq.known && f.seq.next > 0 {
		err := f.withReplay(ctx, func(c *zmtp.Conn) error { return f.replayOn(c, f.seq.next-1) })
		if !errors.Is(err, errOtherProcess) {
			return err
		}
		f.stats.Restarts++
		rebuild = "the engine was started anew"
	}
	if rebuild == "" {
		rebuild = "the replay begins anew"
	}
	// On another connection: the refused replay may still be arriving on that one.
	return f.withReplay(ctx, func(c *zmtp.Conn) error {
		f.resync(rebuild)
		return f.replayAll(c)
	})
}

// withReplay gives do a connection to the replay endpoint.
func (f *rankFeed) withReplay(ctx context.Context, do func(*zmtp.Conn) error) error {
	c, err := zmtp.DialDealer(ctx, f.replayEndpoint, f.opts.Conn)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	return do(c)
}

// replayOn replays what follows batch last, which the engine has to have as it was.
func (f *rankFeed) replayOn(c *zmtp.Conn, last uint64) error {
	confirmed := false
	err := f.replayFrom(c, last, func(seq uint64, payload []byte) error {
		if confirmed {
			return f.replayed(seq, payload)
		}
		switch {
		case seq == last && xxh3.Hash(payload) == f.lastSum:
			f.seq.unsure = false
		case seq > last:
			// The engine has forgotten the batch: all it still has is what comes now.
			f.resync("the engine's replay does not reach back far enough")
			if err := f.replayed(seq, payload); err != nil {
				return err
			}
		default:
			return errOtherProcess
		}
		confirmed = true
		return nil
	})
	if err == nil && !confirmed { // nothing of that number was ever published
		return errOtherProcess
	}
	return err
}

// replayAll replays all that the engine has, onto a cleared rank.
func (f *rankFeed) replayAll(c *zmtp.Conn) error {
	if err := f.replayFrom(c, 0, f.replayed); err != nil {
		return err
	}
	if !f.seq.known { // the engine has not published anything yet
		f.seq.next, f.seq.known, f.seq.unsure, f.complete = 0, true, false, true
	}
	return nil
}

// replayed applies a replayed batch. One that is malformed would be so again: the rank stays incomplete.
func (f *rankFeed) replayed(seq uint64, payload []byte) error {
	switch {
	case !f.seq.known:
		f.complete = seq == 0
	case seq != f.seq.next:
		return fmt.Errorf("%w: batch %d after %d", errReplayOrder, seq, f.seq.next-1)
	}
	f.stats.ReplayedBatches++
	if err := f.apply(seq, payload); errors.Is(err, event.ErrMalformed) {
		f.complete = false
	}
	return nil
}

// replayFrom asks for the batches from start on and hands them to each, until it fails.
func (f *rankFeed) replayFrom(c *zmtp.Conn, start uint64, each func(seq uint64, payload []byte) error) error {
	var failed error
	n := 0
	err := c.Replay(start, f.opts.ReplayTimeout, func(seq uint64, payload []byte) bool {
		if n++; n > maxReplayBatches {
			failed = fmt.Errorf("%w: more than %d batches", errReplayOrder, maxReplayBatches)
		} else {
			failed = each(seq, payload)
		}
		return failed == nil
	})
	return errors.Join(failed, err)
}
