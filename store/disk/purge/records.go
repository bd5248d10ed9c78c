package purge

import (
	"context"
	"fmt"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/sleep"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/chains"
	"github.com/kvconn/kvconn/store/disk/index"
)

// PromptResult is what the removal of a prompt has done, or would do.
type PromptResult struct {
	// Records of the prompt's own blocks, and Continuations: records of blocks that go on from its last block.
	Records       int64 `json:"records"`
	Continuations int64 `json:"continuations"`
	// Bytes are those of the payloads of both.
	Bytes int64 `json:"bytes"`
	// Incomplete is as in [Result].
	Incomplete bool `json:"incomplete"`
	// Found are the records, for other tiers to forget.
	Found []chains.Record `json:"-"`
}

// Count sets what follows from the records found for the keys of a prompt.
func (r *PromptResult) Count(found []chains.Record, keys []connector.Key) {
	own := make(map[connector.Key]bool, len(keys))
	for _, k := range keys {
		own[k] = true
	}
	r.Found = found
	for i := range found {
		if own[found[i].ID.Key] {
			r.Records++
		} else {
			r.Continuations++
		}
		r.Bytes += int64(found[i].Bytes)
	}
}

// takeRecords takes some of the step's single records out of the table.
func (s *Step) takeRecords(t *index.Table, out []index.Removed) []index.Removed {
	n := min(len(s.records), stepRecords)
	for _, r := range s.records[:n] {
		if !s.force && t.Pinned(r.Ref) {
			s.kept = append(s.kept, r)
			continue
		}
		// A load that holds it and has not read it yet will find it gone. Its slot is used again after that.
		if gone, ok := t.Remove(r.Ref, r.Seq); ok {
			out, s.taken = append(out, gone), append(s.taken, r)
		}
	}
	s.records = s.records[n:]
	return out
}

// Records removes single records of a namespace, and returns those that were there and are gone, once that is durable.
// It waits for loads that hold some for at most wait, and removes those then, too: such a load finds them gone.
// Saves of them that come meanwhile stay. With an error, [store.ErrIO] or that of ctx, some records may be gone already, and may come
// back after a crash.
func (p *Purges) Records(ctx context.Context, namespace uint16, records []chains.Record, wait time.Duration) (removed []chains.Record, err error) {
	select {
	case p.running <- struct{}{}:
		defer func() { <-p.running }()
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for another purge: %w: %w", store.ErrTimeout, context.Cause(ctx))
	}
	t := &target{namespace: namespace, records: make(map[index.Ref]uint64, len(records))}
	for _, r := range records {
		t.records[r.Ref], t.upTo = r.Seq, max(t.upTo, r.Seq)
	}
	p.current.Store(t)
	defer p.current.Store(nil)
	for end := time.Now().Add(wait); len(records) > 0 && ctx.Err() == nil; {
		s := &Step{records: records, force: !time.Now().Before(end)}
		for len(s.records) > 0 && err == nil && ctx.Err() == nil {
			err = p.commit(s)
		}
		removed = append(removed, s.taken...)
		p.total.Add(uint64(len(s.taken)))
		if err != nil {
			return removed, fmt.Errorf("purge: %w", err)
		}
		if records = s.kept; len(records) > 0 {
			sleep.For(ctx, min(pause, time.Until(end)), nil)
		}
	}
	if ctx.Err() != nil {
		return removed, fmt.Errorf("purge: %w: %w", store.ErrTimeout, context.Cause(ctx))
	}
	if err := p.sync(ctx); err != nil {
		return removed, fmt.Errorf("purge: %w", err)
	}
	return removed, nil
}
