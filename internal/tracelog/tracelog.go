// Package tracelog writes the requests that engines make to a file that `kvconnd replay` reads: when each came, how long
// its prompt and answer were, and hashes of its blocks. No token and no text is written.
package tracelog

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/kvconn/kvconn/connector"
)

// Options configure [Open].
type Options struct {
	// Path is the file. One that is there already is renamed to Path.1, as is one that is full.
	Path string
	// MaxBytes bounds each of the two files. Default 256 MB.
	MaxBytes int64
	// BlockTokens is the number of tokens that a hash stands for. Default 512, which replay takes for granted.
	BlockTokens int
	// Wait is how long a request is kept for its end, to know the length of its answer. Default 5 min.
	Wait   time.Duration
	Logger *slog.Logger
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

const (
	// queueLength is how many arrivals and ends may wait for the writer, maxQueued how many hashes: 16 MB.
	queueLength, maxQueued = 4096, 2 << 20
	// maxOpen and maxOpenHashes bound the requests that are kept for their ends: some 16 MB.
	maxOpen, maxOpenHashes = 16384, 2 << 20
	// maxHashes bounds a line: replay refuses one of more than 8 MiB.
	maxHashes = 350_000
	// minBytes is the smallest bound of a file that has room for any line.
	minBytes = 16 << 20
	// flushInterval is how long a line may wait in memory once it is complete.
	flushInterval = time.Second
)

// EnsureDefaults fills in what is not set.
func (o *Options) EnsureDefaults() {
	o.MaxBytes = cmp.Or(o.MaxBytes, 256e6)
	o.BlockTokens = cmp.Or(o.BlockTokens, 512)
	o.Wait = cmp.Or(o.Wait, 5*time.Minute)
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	if o.Now == nil {
		o.Now = time.Now
	}
}

// Validate reports the first option that cannot work.
func (o *Options) Validate() error {
	switch {
	case o.Path == "":
		return errors.New("trace: no file")
	case o.MaxBytes < minBytes:
		return fmt.Errorf("trace: a file of %d bytes is too small: at least %d", o.MaxBytes, minBytes)
	case o.BlockTokens < 1 || o.BlockTokens > connector.MaxTokens:
		return fmt.Errorf("trace: blocks of %d tokens: 1 to %d", o.BlockTokens, connector.MaxTokens)
	case o.Wait < 0:
		return errors.New("trace: the wait for a request's end must be positive")
	}
	return nil
}

// Stats count what became of requests.
type Stats struct {
	Recorded uint64 `json:"recorded" metric:"recorded_total" help:"Requests written to the trace file."`
	Dropped  uint64 `json:"dropped" metric:"dropped_total" help:"Requests that are not in the trace file: its disk was too slow, failed or is full."`
}

// arrival is a request that came, and what is known of its end.
type arrival struct {
	number uint64
	at     time.Duration // since the start
	prompt int
	answer int
	hashes []uint64
	ended  bool
}

// message is an arrival, or the end of one.
type message struct {
	arrival *arrival
	number  uint64
	answer  int
}

// Log writes requests to its file. It is safe for concurrent use.
type Log struct {
	opts  Options
	start time.Time
	file  *file

	mu     sync.Mutex
	closed bool
	last   uint64 // number of the latest arrival
	stats  Stats
	queue  chan message
	queued int       // hashes in the queue
	free   sync.Pool // of *arrival

	done     chan struct{} // closed once the writer has ended
	closing  sync.Once
	closeErr error
}

// Open begins a new file.
func Open(o Options) (*Log, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	f, err := create(o.Path, o.MaxBytes)
	if err != nil {
		return nil, err
	}
	l := &Log{opts: o, start: o.Now(), file: f, queue: make(chan message, queueLength), done: make(chan struct{})}
	l.free.New = func() any { return new(arrival) }
	go l.run()
	return l, nil
}

// Stats returns the counters.
func (l *Log) Stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stats
}

// Close writes what is known and closes the file.
func (l *Log) Close() error {
	l.mu.Lock()
	if !l.closed {
		l.closed = true
		close(l.queue)
	}
	l.mu.Unlock()
	<-l.done
	l.closing.Do(func() { l.closeErr = l.file.close() })
	return l.closeErr
}

// Engine returns the part of the log for an engine with blocks of that size, or an error if the trace's blocks are not
// made of whole ones.
func (l *Log) Engine(namespace connector.NamespaceDigest, blockTokens int) (*Engine, error) {
	if blockTokens < 1 || l.opts.BlockTokens%blockTokens != 0 {
		return nil, fmt.Errorf("trace: its blocks of %d tokens are no multiple of the engine's, of %d tokens", l.opts.BlockTokens, blockTokens)
	}
	return &Engine{log: l, stride: l.opts.BlockTokens / blockTokens, own: binary.LittleEndian.Uint64(namespace[:8])}, nil
}

// Engine records the requests of one engine. It is safe for concurrent use.
type Engine struct {
	log    *Log
	stride int // of its blocks in one of the trace's
	// own keeps the blocks of namespaces apart: their keys are those of tokens alone.
	own uint64
}

// Arrived records a request with the keys of its prompt's full blocks. It returns the request's number, 0 if it is not
// recorded. It keeps nothing of keys, and never waits.
func (e *Engine) Arrived(promptTokens int, keys []connector.Key) uint64 {
	l := e.log
	n := min(promptTokens/l.opts.BlockTokens, len(keys)/e.stride)
	if promptTokens < 1 || n < promptTokens/l.opts.BlockTokens || n > maxHashes {
		l.drop()
		return 0
	}
	a := l.free.Get().(*arrival)
	*a = arrival{prompt: promptTokens, hashes: a.hashes[:0]}
	for i := range n {
		key := &keys[(i+1)*e.stride-1]
		a.hashes = append(a.hashes, (binary.LittleEndian.Uint64(key[:8])^e.own)&(1<<63-1))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	a.at, a.number = l.opts.Now().Sub(l.start), l.last+1
	if l.closed || l.queued > 0 && l.queued+n > maxQueued || !l.send(message{arrival: a}) {
		l.stats.Dropped++
		l.free.Put(a)
		return 0
	}
	l.last++
	l.queued += n
	return l.last
}

// Ended records how long the answer of a request was. It never waits.
func (e *Engine) Ended(number uint64, answerTokens int) {
	if number == 0 {
		return
	}
	l := e.log
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.send(message{number: number, answer: max(0, answerTokens)}) // if it is lost, the length stays unknown
	}
}

// send hands a message to the writer if it has room. l.mu is held: messages are in the order of time.
func (l *Log) send(m message) bool {
	select {
	case l.queue <- m:
		return true
	default:
		return false
	}
}

func (l *Log) drop() {
	l.mu.Lock()
	l.stats.Dropped++
	l.mu.Unlock()
}
