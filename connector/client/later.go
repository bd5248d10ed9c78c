package client

import (
	"context"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/wire"
)

// Saves whose end is reported later, for engines on devices: their forward pass has only been launched when they save.

// SaveLater saves the blocks that a step fills, and returns at once. The engine keeps them as they are until Stored reports the
// save under id, once, or until Revoke has taken them back. No other save of that id may be in flight, and id must not be empty.
// Memory that is no device's is copied before SaveLater returns, and Stored reports it all the same.
func (w *Worker) SaveLater(ctx context.Context, id string, metadata []byte) {
	// Before anything else: the engine may revoke blocks while the call is under way.
	m := connector.SaveRequest{ID: id, Metadata: metadata, Revoked: w.revoked.Count()}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.unregistered || len(metadata) == 0 {
		w.reports.Stored = append(w.reports.Stored, connector.StoredPut{ID: id})
		return
	}
	var r connector.SaveResult
	later := false
	job := jobID{id, true}
	w.startJobs(ctx, wire.OpSave,
		func(b []byte) []byte { return wire.AppendSave(b, &m) },
		func(b []byte) (err error) {
			r, later, err = wire.DecodeSaveResult(b)
			return err
		}, map[jobID]pendingJob{job: {}})
	if _, started := w.inFlight[job]; started && !later {
		delete(w.inFlight, job)
		w.reports.Stored = append(w.reports.Stored, connector.StoredPut{ID: id, SaveResult: r})
	}
}

// Revoke takes blocks back from all saves that SaveLater has started, those of all layer groups with these numbers. When it returns they
// may be overwritten: nothing is kept that was copied from them later. It waits for nobody, not even for a call that
// another goroutine makes. The saves are still reported. It may sort blocks.
func (w *Worker) Revoke(blocks []uint32) { w.revoked.Revoke(blocks) }

// Stored returns the saves by key and those of SaveLater that had ended at the last call of Poll, those of a daemon that is
// gone as dropped: each exactly once.
func (w *Worker) Stored() []connector.StoredPut {
	w.mu.Lock()
	defer w.mu.Unlock()
	stored := w.reports.Stored
	w.reports.Stored = nil
	return stored
}
