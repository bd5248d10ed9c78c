package health

import "time"

// sign is what a fault is known by. It takes an observation in and returns since when the
// fault is there, the zero time if it is not.
type sign func(now time.Time, st *Observation) time.Time

func newFault(code, detail, remedy, healed string, s sign) *fault {
	return &fault{reason: Reason{Code: code, Detail: detail, Remedy: remedy}, healed: healed, sign: s}
}

func faults() []*fault {
	writes := func(s *Observation) uint64 { return s.Writes }
	return []*fault{
		newFault("journal_failing", "barriers fail: what is saved does not become durable",
			"the log names the cause: free space or repair the disk; no restart is needed, saving goes on by itself",
			"saving again: barriers succeed",
			failing(3, func(s *Observation) uint64 { return s.BarrierErrors },
				func(s *Observation) uint64 { return s.Barriers - s.BarrierErrors })),
		newFault("reads_failing", "reads from the disk fail, do not end in time or return wrong bytes: engines recompute",
			"look for I/O errors in the kernel's log and replace the disk, or give the daemon another directory",
			"loading again: reads from the disk succeed",
			failing(3, func(s *Observation) uint64 { return s.ReadErrors + s.ReadTimeouts + s.Corrupt },
				func(s *Observation) uint64 { return s.Reads })),
		newFault("writes_failing", "the disk refuses writes: nothing is saved",
			"is the file system full or mounted read-only? Look for I/O errors in the kernel's log; no restart is needed",
			"saving again: the disk takes writes",
			failing(3, func(s *Observation) uint64 { return s.WriteErrors }, writes)),
		newFault("no_room", "saves find no room: nothing is saved",
			"free space in the file system, or lower max_bytes or min_free; the log says why no segment can be made",
			"saving again: there is room", failing(16, func(s *Observation) uint64 { return s.WritesRefused }, writes)),
		newFault("engines_refused", "the store cannot take up the engines' models: they go on without cache",
			"is the file system full or mounted read-only? The log names the cause; engines come back by themselves",
			"engines are let in again",
			failing(3, func(s *Observation) uint64 { return s.NamespacesFailed },
				func(s *Observation) uint64 { return s.NamespacesOpened })),
		newFault("writes_hung", "writes to the disk do not end",
			"look for a hung device or network file system in the kernel's log; saves are dropped meanwhile",
			"saving again: writes to the disk end", hung()),
		newFault("disk_low", "others fill the file system: less is free than min_free, and the store has given back what it can",
			"free space in the file system; the store grows again by itself. Lower min_free if others need less",
			"the file system has room again", low()),
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
func failing(persistent uint64, errors, successes func(*Observation) uint64) sign {
	var lastErrors, lastOK uint64
	var count uint64          // errors since the last good interval
	var since, seen time.Time // the first and the last of them
	return func(now time.Time, st *Observation) time.Time {
		e, ok := errors(st), successes(st)
		newErrors, newOK := e-lastErrors, ok-lastOK
		lastErrors, lastOK = e, ok
		switch {
		case newOK > 0 && newOK >= newErrors:
			count = 0
		case newErrors > 0:
			if count == 0 {
				since = now
			}
			count += newErrors
			seen = now
		case count > 0 && now.Sub(seen) >= forgetAfter:
			count = 0
		}
		if count < persistent {
			return time.Time{}
		}
		return since
	}
}

// hung is writes that neither end nor fail.
func hung() sign {
	var last uint64
	var since time.Time
	return func(now time.Time, st *Observation) time.Time {
		ended := st.Writes + st.WriteErrors + st.WritesRefused + st.WritesOfSame
		if st.WriteInFlightBytes == 0 || ended != last || since.IsZero() {
			last, since = ended, now
		}
		if now.Sub(since) < hungAfter {
			return time.Time{}
		}
		return since
	}
}

// low is a file system that others have filled for some time.
func low() sign {
	var since time.Time
	return func(now time.Time, st *Observation) time.Time {
		switch {
		case st.FreeBytes >= st.MinFreeBytes:
			since = time.Time{}
		case since.IsZero():
			since = now
		}
		if since.IsZero() || now.Sub(since) < lowAfter {
			return time.Time{}
		}
		return since
	}
}
