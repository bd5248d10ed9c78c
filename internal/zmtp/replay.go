package zmtp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"
)

// EndOfReplay is the sequence number, -1 on the wire, that ends a replay.
const EndOfReplay = 1<<64 - 1

// ReplayServer answers requests for past batches in vLLM's protocol: it is a ROUTER that receives
// ["", start u64 big endian] and replies with ["", topic, seq, payload] for each batch it still has from start
// on, then with ["", "", -1, ""].
type ReplayServer struct {
	server
	history *History
}

// NewReplayServer serves h's batches on l (see [Listen]).
func NewReplayServer(l net.Listener, h *History, logger *slog.Logger) *ReplayServer {
	s := &ReplayServer{server: newServer(l, logger, typeRouter, typeDealer, typeReq, typeRouter), history: h}
	s.serve = s.answer
	return s
}

// answer answers one peer's requests until it has gone.
func (s *ReplayServer) answer(ctx context.Context, c *Conn) error {
	var m Message
	for {
		if err := c.Recv(&m); err != nil {
			return err
		}
		if m.Len() != 2 || len(m.Frame(0)) != 0 || len(m.Frame(1)) != 8 {
			return fmt.Errorf("%w: a replay request of %d frames", ErrProtocol, m.Len())
		}
		if err := s.reply(ctx, c, binary.BigEndian.Uint64(m.Frame(1))); err != nil {
			return fmt.Errorf("send a replay: %w", err)
		}
	}
}

// reply sends the batches that are kept, as fast as the peer reads them: no copies wait in memory.
func (s *ReplayServer) reply(ctx context.Context, c *Conn, seq uint64) error {
	var number [8]byte
	for end := s.history.Next(); ctx.Err() == nil; seq++ {
		found, b, ok := s.history.from(seq)
		if !ok || found >= end {
			break
		}
		seq = found
		binary.BigEndian.PutUint64(number[:], seq)
		if err := c.Send(nil, b.topic, number[:], b.payload); err != nil {
			return err
		}
	}
	binary.BigEndian.PutUint64(number[:], EndOfReplay)
	return c.Send(nil, nil, number[:], nil)
}

// ErrBadReplay says that a peer's answer is not a replay.
var ErrBadReplay = errors.New("zmtp: not a replay")

// Replay asks the peer of c, a connection of [DialDealer], for its batches from number start on and gives
// them to f in order until the end, or until f returns false. idle bounds the wait for each message. Batches may
// have 4 frames or, as older engines send them, 3, without a topic. payload is valid until f returns.
func (c *Conn) Replay(start uint64, idle time.Duration, f func(seq uint64, payload []byte) bool) error {
	if err := c.Send(nil, binary.BigEndian.AppendUint64(nil, start)); err != nil {
		return fmt.Errorf("ask for a replay: %w", err)
	}
	var m Message
	for {
		if err := c.c.SetReadDeadline(time.Now().Add(idle)); err != nil {
			return fmt.Errorf("wait for a replay: %w", err)
		}
		if err := c.Recv(&m); err != nil {
			return fmt.Errorf("wait for a replay: %w", err)
		}
		n := m.Len()
		if n != 3 && n != 4 || len(m.Frame(0)) != 0 || len(m.Frame(n-2)) != 8 {
			return fmt.Errorf("%w: a message of %d frames", ErrBadReplay, n)
		}
		seq := binary.BigEndian.Uint64(m.Frame(n - 2))
		if seq == EndOfReplay || !f(seq, m.Frame(n-1)) {
			return nil
		}
	}
}

// History keeps the last batches for replays. Its methods may be called from any goroutine.
type History struct {
	maxBytes int

	mu    sync.Mutex
	ring  []batch // batch seq is at seq modulo its length
	first uint64  // oldest one kept
	next  uint64
	bytes int
}

type batch struct{ topic, payload []byte }

// NewHistory makes a history of 10,000 batches, as engines do, and 64 MiB at most. Its first batch will have the
// number 0.
func NewHistory() *History { return newHistory(10_000, 64<<20) }

func newHistory(maxBatches, maxBytes int) *History {
	return &History{maxBytes: maxBytes, ring: make([]batch, maxBatches)}
}

// Append keeps a batch, whose bytes must not change from now on, and returns its number.
func (h *History) Append(topic, payload []byte) uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	seq := h.next
	h.next++
	for h.first < seq && (seq-h.first >= uint64(len(h.ring)) || h.bytes+len(payload) > h.maxBytes) {
		slot := &h.ring[h.first%uint64(len(h.ring))]
		h.bytes -= len(slot.payload)
		*slot = batch{}
		h.first++
	}
	h.ring[seq%uint64(len(h.ring))] = batch{topic: topic, payload: payload}
	h.bytes += len(payload)
	return seq
}

// Next is the number that the next batch will have.
func (h *History) Next() uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.next
}

// from returns the oldest batch kept whose number is at least seq.
func (h *History) from(seq uint64) (found uint64, b batch, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	seq = max(seq, h.first)
	if seq >= h.next {
		return 0, batch{}, false
	}
	return seq, h.ring[seq%uint64(len(h.ring))], true
}
