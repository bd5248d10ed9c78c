package fetch

import "github.com/kvconn/kvconn/store/record"

// worker is a goroutine that reads ranges. It lives until the fetcher is closed: the client library needs a
// deep stack, and a new goroutine would grow its stack again for every range. There are no more workers than
// connections.
type worker struct {
	next chan *run // has room for one
	scratch
}

// scratch is what a goroutine needs to read a range.
type scratch struct {
	header [headerBytes]byte
	opened record.Header
	// stored is for what cannot be read into the op's buffer, and for what nobody wants.
	stored []byte
}

// give gives a range to a worker. f.mu is held.
func (f *Fetcher) give(r *run) {
	w, ok := pop(&f.resting)
	if ok {
		f.kept -= int64(cap(w.stored))
	} else {
		w = &worker{next: make(chan *run, 1), scratch: scratch{stored: make([]byte, discardBytes)}}
		f.workers.Go(func() {
			for r := range w.next {
				f.work(r, w)
			}
		})
	}
	w.next <- r
}

// rest ends the work of a worker on a range. The worker keeps its buffer while the buffers of all resting workers
// are no more than what may be in flight. f.mu is held.
func (f *Fetcher) rest(w *worker) {
	if f.closed {
		close(w.next)
		return
	}
	if cap(w.stored) > discardBytes && f.kept+int64(cap(w.stored)) > f.o.InFlightBytes {
		w.stored = make([]byte, discardBytes)
	}
	f.kept += int64(cap(w.stored))
	f.resting = append(f.resting, w)
}

// dismiss ends all resting workers. f.mu is held.
func (f *Fetcher) dismiss() {
	for _, w := range f.resting {
		close(w.next)
	}
	f.resting = nil
}
