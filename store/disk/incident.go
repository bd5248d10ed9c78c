package disk

import "sync/atomic"

// incident is something that goes wrong for a while: it is logged when it begins and when
// it is over, not each time that it is met.
type incident struct{ on atomic.Bool }

// begins reports whether the incident is new.
func (i *incident) begins() bool { return i.on.CompareAndSwap(false, true) }

// ends reports whether there was one, which is over now.
func (i *incident) ends() bool { return i.on.Load() && i.on.CompareAndSwap(true, false) }
