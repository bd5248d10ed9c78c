package health

import "time"

// sign is what a fault is known by. It takes an observation in and returns since when the
// fault is there, the zero time if it is not.
type sign interface {
	observe(now time.Time, st *Observation) time.Time
}

// faults lists what can be wrong.
func faults() []*fault {
	return []*fault{
		{
			reason: Reason{
				Code: "journal_failing", Detail: "barriers fail: what is saved does not become durable",
				Remedy: "the log names the cause: free space or repair the disk; no restart is needed, saving goes on by itself",
			},
			healed: "saving again: barriers succeed",
			sign: &failing{
				persistent: 3,
				errors:     func(s *Observation) uint64 { return s.BarrierErrors },
				successes:  func(s *Observation) uint64 { return s.Barriers - s.BarrierErrors },
			},
		},
		{
			reason: Reason{
				Code: "reads_failing", Detail: "reads from the disk fail, do not end in time or return wrong bytes: engines recompute",
				Remedy: "look for I/O errors in the kernel's log and replace the disk, or give the daemon another directory",
			},
			healed: "loading again: reads from the disk succeed",
			sign: &failing{
				persistent: 3,
				errors:     func(s *Observation) uint64 { return s.ReadErrors + s.ReadTimeouts + s.Corrupt },
				successes:  func(s *Observation) uint64 { return s.Reads },
			},
		},
		{
			reason: Reason{
				Code: "writes_failing", Detail: "the disk refuses writes: nothing is saved",
				Remedy: "is the file system full or mounted read-only? Look for I/O errors in the kernel's log; no restart is needed",
			},
			healed: "saving again: the disk takes writes",
			sign: &failing{
				persistent: 3,
				errors:     func(s *Observation) uint64 { return s.WriteErrors },
				successes:  func(s *Observation) uint64 { return s.Writes },
			},
		},
		{
			reason: Reason{
				Code: "no_room", Detail: "saves find no room: nothing is saved",
				Remedy: "free space in the file system, or lower max_bytes or min_free; the log says why no segment can be made",
			},
			healed: "saving again: there is room",
			sign: &failing{
				persistent: 16,
				errors:     func(s *Observation) uint64 { return s.WritesRefused },
				successes:  func(s *Observation) uint64 { return s.Writes },
			},
		},
		{
			reason: Reason{
				Code: "engines_refused", Detail: "the store cannot take up the engines' models: they go on without cache",
				Remedy: "is the file system full or mounted read-only? The log names the cause; engines come back by themselves",
			},
			healed: "engines are let in again",
			sign: &failing{
				persistent: 3,
				errors:     func(s *Observation) uint64 { return s.NamespacesFailed },
				successes:  func(s *Observation) uint64 { return s.NamespacesOpened },
			},
		},
		{
			reason: Reason{
				Code: "writes_hung", Detail: "writes to the disk do not end",
				Remedy: "look for a hung device or network file system in the kernel's log; saves are dropped meanwhile",
			},
			healed: "saving again: writes to the disk end",
			sign:   new(hung),
		},
		{
			reason: Reason{
				Code: "disk_low", Detail: "others fill the file system: less is free than min_free, and the store has given back what it can",
				Remedy: "free space in the file system; the store grows again by itself. Lower min_free if others need less",
			},
			healed: "the file system has room again",
			sign:   &lasting{after: lowAfter, bad: func(s *Observation) bool { return s.FreeBytes < s.MinFreeBytes }},
		},
	}
}

// Codes lists the codes of all reasons.
func Codes() []string {
	var codes []string
	for _, f := range faults() {
		codes = append(codes, f.reason.Code)
	}
	return codes
}

// failing is errors that go on without as many successes: persistent is the number of them
// that makes a fault.
type failing struct {
	persistent         uint64
	errors, successes  func(*Observation) uint64
	lastErrors, lastOK uint64
	// count adds up errors since the last good interval; since and seen are the first and
	// the last of them.
	count       uint64
	since, seen time.Time
}

func (f *failing) observe(now time.Time, st *Observation) time.Time {
	e, ok := f.errors(st), f.successes(st)
	newErrors, newOK := e-f.lastErrors, ok-f.lastOK
	f.lastErrors, f.lastOK = e, ok
	switch {
	case newOK > 0 && newOK >= newErrors:
		f.count = 0
	case newErrors > 0:
		if f.count == 0 {
			f.since = now
		}
		f.count += newErrors
		f.seen = now
	case f.count > 0 && now.Sub(f.seen) >= forgetAfter:
		f.count = 0
	}
	if f.count < f.persistent {
		return time.Time{}
	}
	return f.since
}

// hung is writes that neither end nor fail.
type hung struct {
	ended uint64
	since time.Time
}

func (h *hung) observe(now time.Time, st *Observation) time.Time {
	ended := st.Writes + st.WriteErrors + st.WritesRefused + st.WritesOfSame
	if st.WriteInFlightBytes == 0 || ended != h.ended || h.since.IsZero() {
		h.ended, h.since = ended, now
	}
	if now.Sub(h.since) < hungAfter {
		return time.Time{}
	}
	return h.since
}

// lasting is a state that is bad if it lasts.
type lasting struct {
	bad   func(*Observation) bool
	after time.Duration
	since time.Time // zero while it is good
}

func (l *lasting) observe(now time.Time, st *Observation) time.Time {
	switch {
	case !l.bad(st):
		l.since = time.Time{}
	case l.since.IsZero():
		l.since = now
	}
	if l.since.IsZero() || now.Sub(l.since) < l.after {
		return time.Time{}
	}
	return l.since
}
