package object

import (
	"sync"
	"time"

	"github.com/kvconn/kvconn/internal/sleep"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/object/catalog"
	"github.com/kvconn/kvconn/store/object/format"
)

const (
	// forgiveAfter is how long an object that this node found missing, damaged or archived is not offered. By then the steward
	// has looked for itself, and has removed it unless the fault was between the bucket and this node.
	forgiveAfter = time.Hour
	// forgiveEvery is how often such objects are looked for.
	forgiveEvery = time.Minute
	// maxLosses bounds those that are remembered. Others are offered again after a restart.
	maxLosses = 1 << 16
)

// loss is an object that this node found missing or damaged.
type loss struct {
	object format.ObjectID
	when   time.Time
}

// losses has a reader's findings taken out of the catalog for a while, and told to the other nodes.
type losses struct {
	t  *Tier
	mu sync.Mutex
	of []loss // the oldest first
}

// Locate finds a record.
func (l *losses) Locate(id store.RecordID, payloadBytes int) (catalog.Place, bool) {
	return l.t.catalog.Locate(id, payloadBytes)
}

// Lost reports an object, once. Archived ones it does not report: the steward would delete what somebody may restore.
func (l *losses) Lost(id format.ObjectID, why format.Cause) {
	if !l.t.catalog.Lost(id, why) {
		return
	}
	if why != format.CauseArchived {
		l.t.outbox.Lose(id, why)
	}
	if why == format.CauseLost {
		l.t.follower.Suspect() // perhaps the bucket was emptied
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.of) < maxLosses {
		l.of = append(l.of, loss{id, time.Now()})
	}
}

// forgive offers objects again, until the tier closes.
func (l *losses) forgive() {
	for sleep.For(l.t.ctx, forgiveEvery, nil) {
		for _, id := range l.old(time.Now().Add(-forgiveAfter)) {
			l.t.catalog.Forgive(id)
		}
	}
}

// old takes out what was lost before a time.
func (l *losses) old(before time.Time) (ids []format.ObjectID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.of) > 0 && l.of[0].when.Before(before) {
		ids = append(ids, l.of[0].object)
		l.of = l.of[1:]
	}
	return ids
}
