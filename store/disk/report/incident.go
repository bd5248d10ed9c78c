package report

import "sync/atomic"

// Incident is something that goes wrong for a while: it is logged when it begins and when it is
// over, not each time it happens.
type Incident struct{ on atomic.Bool }

// Begins reports whether the incident is new.
func (i *Incident) Begins() bool { return i.on.CompareAndSwap(false, true) }

// Ends reports whether there was one, which is over now.
func (i *Incident) Ends() bool { return i.on.Load() && i.on.CompareAndSwap(true, false) }

// On reports whether the incident goes on.
func (i *Incident) On() bool { return i.on.Load() }

// Damage is a record that was found damaged and dropped.
type Damage struct {
	Namespace string `json:"namespace"`
	Shard     int    `json:"shard"`
	Key       string `json:"key"`
	Segment   uint32 `json:"segment"`
	Slot      uint32 `json:"slot"`
	Reason    string `json:"reason"`
}
