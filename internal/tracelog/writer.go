package tracelog

import (
	"strconv"
	"time"
)

// writer keeps requests in the order of their arrival until they have ended: lines of a trace are in that order.
type writer struct {
	log    *Log
	open   []*arrival // open[0] came first; numbers have no gaps
	hashes int        // of all that are open
	line   []byte
	failed bool // the last write failed, and was logged
}

// run writes until the queue is closed.
func (l *Log) run() {
	defer close(l.done)
	w := &writer{log: l}
	tick := time.NewTicker(flushInterval)
	defer tick.Stop()
	for {
		select {
		case m, ok := <-l.queue:
			if !ok {
				for len(w.open) > 0 {
					w.first()
				}
				w.flush()
				return
			}
			w.take(m)
		case <-tick.C:
			w.settle()
			w.flush()
		}
	}
}

// take takes a message.
func (w *writer) take(m message) {
	if m.arrival != nil {
		n := len(m.arrival.hashes)
		w.open = append(w.open, m.arrival)
		w.hashes += n
		w.log.mu.Lock()
		w.log.queued -= n
		w.log.mu.Unlock()
	} else if len(w.open) > 0 && m.number >= w.open[0].number {
		if i := m.number - w.open[0].number; i < uint64(len(w.open)) {
			w.open[i].ended, w.open[i].answer = true, m.answer
		}
	}
	w.settle()
}

// settle writes the requests that nothing is expected of any more.
func (w *writer) settle() {
	now := w.log.opts.Now().Sub(w.log.start)
	for len(w.open) > 0 {
		a := w.open[0]
		if !a.ended && now-a.at < w.log.opts.Wait && len(w.open) <= maxOpen && w.hashes <= maxOpenHashes {
			return
		}
		w.first()
	}
}

// first writes the first of the open requests.
func (w *writer) first() {
	a := w.open[0]
	w.open[0] = nil
	w.open = w.open[1:]
	w.hashes -= len(a.hashes)
	w.line = appendLine(w.line[:0], a)
	w.note(w.log.file.add(w.line))
	w.log.free.Put(a)
}

func (w *writer) flush() { w.note(w.log.file.flush()) }

// note counts requests that were written and lost. The first of several failures is logged.
func (w *writer) note(written, lost uint64, err error) {
	w.log.mu.Lock()
	w.log.stats.Recorded += written
	w.log.stats.Dropped += lost
	w.log.mu.Unlock()
	if err != nil && !w.failed {
		w.log.opts.Logger.Warn("the trace cannot be written: requests are missing in it", "err", err,
			"remedy", "free space on its file system, or record to another one; the cache is not affected")
	}
	if written > 0 || err != nil {
		w.failed = err != nil
	}
}

// appendLine appends a request in the form of a trace.
func appendLine(b []byte, a *arrival) []byte {
	b = append(b, `{"timestamp": `...)
	b = strconv.AppendInt(b, a.at.Milliseconds(), 10)
	b = append(b, `, "input_length": `...)
	b = strconv.AppendInt(b, int64(a.prompt), 10)
	b = append(b, `, "output_length": `...)
	b = strconv.AppendInt(b, int64(a.answer), 10)
	b = append(b, `, "hash_ids": [`...)
	for i, h := range a.hashes {
		if i > 0 {
			b = append(b, ',', ' ')
		}
		b = strconv.AppendUint(b, h, 10)
	}
	return append(b, "]}\n"...)
}
