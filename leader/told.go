package leader

import (
	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/leader/pricing"
)

// Trace returns the traceparent that a request came with, "" if there is none or the request is not
// known.
func (l *Leader) Trace(id string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r := l.requests.find(id); r != nil {
		return string(r.trace)
	}
	return ""
}

// savedEntryBytes is what an entry of [connector.StepReply].Saves takes beside its request's id.
const savedEntryBytes = 32

// tellSaves notes that blocks [first, end) of a group are saved, if the engine asked for it and the
// answer has room.
func (l *Leader) tellSaves(r *request, g *pricing.Group, first, end int) {
	if n := savedEntryBytes + len(r.id); l.telling && n <= l.room.left {
		l.room.left -= n
		l.told = append(l.told, connector.PlannedSave{Request: string(r.id), Group: g.Index, First: first, Count: end - first})
	}
}
