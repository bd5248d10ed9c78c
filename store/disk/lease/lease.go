// Package lease keeps the leases that pin records for loads.
package lease

import (
	"sync"
	"time"

	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/index"
)

// Lease pins the records that one lookup found.
type Lease struct {
	// Refs are their slots.
	Refs     []index.Ref
	deadline time.Time
}

// Table has the leases in force. The scratch memory of ended ones is used again.
type Table struct {
	mu   sync.Mutex
	next store.LeaseID
	held map[store.LeaseID]*Lease
	idle []*Lease
	max  int
}

// New returns a table of at most limit leases.
func New(limit int) *Table {
	return &Table{held: make(map[store.LeaseID]*Lease), max: limit}
}

// maxIdle bounds the scratch memory kept.
const maxIdle = 256

// Begin returns a lease that is not in force, or nil if no more may be held.
func (l *Table) Begin() *Lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.held) >= l.max {
		return nil
	}
	if n := len(l.idle); n > 0 {
		out := l.idle[n-1]
		l.idle = l.idle[:n-1]
		return out
	}
	return new(Lease)
}

// Hold puts a lease in force until deadline.
func (l *Table) Hold(e *Lease, deadline time.Time) store.LeaseID {
	l.mu.Lock()
	defer l.mu.Unlock()
	e.deadline = deadline
	l.next++
	l.held[l.next] = e
	return l.next
}

// Recycle takes back a lease that is not in force.
func (l *Table) Recycle(e *Lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.idle) < maxIdle {
		e.Refs = e.Refs[:0]
		l.idle = append(l.idle, e)
	}
}

// End removes and returns a lease, or nil if it has ended.
func (l *Table) End(id store.LeaseID) *Lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.held[id]
	delete(l.held, id)
	return e
}

// Expired removes and returns one lease whose deadline has passed.
func (l *Table) Expired(now time.Time) *Lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, e := range l.held {
		if now.After(e.deadline) {
			delete(l.held, id)
			return e
		}
	}
	return nil
}

// Count returns how many leases are held.
func (l *Table) Count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.held)
}

// Renew gives a lease another deadline. It reports false if the lease has ended by now.
func (l *Table) Renew(id store.LeaseID, now, deadline time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.held[id]
	if e == nil || now.After(e.deadline) {
		return false
	}
	e.deadline = deadline
	return true
}
