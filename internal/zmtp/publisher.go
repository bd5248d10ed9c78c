package zmtp

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
)

// Publisher is a PUB socket: a message goes to every subscriber with a subscription that its first frame begins
// with. A subscriber that is too slow loses messages, as the sequence numbers show it; no other does.
type Publisher struct {
	server

	mu          sync.Mutex
	subscribers map[*subscriber]bool

	published, sent, dropped atomic.Uint64
}

// PublisherStats are what a publisher has done.
type PublisherStats struct {
	// Subscribers are connected now.
	Subscribers int
	// Published counts messages, Sent and Dropped messages times subscribers.
	Published, Sent, Dropped uint64
}

// subscriber is one peer: a bounded queue that the publisher fills and a goroutine empties.
type subscriber struct {
	queue  chan []byte
	queued atomic.Int64 // bytes

	mu       sync.Mutex
	prefixes map[string]int // its topics, and how often it asked for each
}

// maxSubscriptions bounds the topics of one subscriber.
const maxSubscriptions = 1024

// NewPublisher makes a publisher of a listener (see [Listen]).
func NewPublisher(l net.Listener, logger *slog.Logger) *Publisher {
	p := &Publisher{server: newServer(l, logger, typePub, typeSub, typeXSub), subscribers: make(map[*subscriber]bool)}
	p.serve = p.follow
	return p
}

// Stats are what was done so far.
func (p *Publisher) Stats() PublisherStats {
	p.mu.Lock()
	n := len(p.subscribers)
	p.mu.Unlock()
	return PublisherStats{Subscribers: n, Published: p.published.Load(), Sent: p.sent.Load(), Dropped: p.dropped.Load()}
}

// Publish sends a message, whose first frame is the topic, to the subscribers of that topic. It
// never waits.
func (p *Publisher) Publish(frames ...[]byte) {
	if len(frames) == 0 {
		return
	}
	p.published.Add(1)
	p.mu.Lock()
	defer p.mu.Unlock()
	var wire []byte // made once, and only if a subscriber wants it
	for s := range p.subscribers {
		if !s.wants(frames[0]) {
			continue
		}
		if wire == nil {
			wire = AppendMessage(nil, frames...)
		}
		if !s.push(wire, p.limits.queueBytes) {
			p.dropped.Add(1)
		}
	}
}

// push queues a message unless the queue is full. It is called by one goroutine at a time.
func (s *subscriber) push(wire []byte, limit int64) bool {
	n := int64(len(wire))
	if s.queued.Load()+n > limit {
		return false
	}
	s.queued.Add(n)
	select {
	case s.queue <- wire:
		return true
	default:
		s.queued.Add(-n)
		return false
	}
}

// wants reports whether a subscription fits the topic.
func (s *subscriber) wants(topic []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for prefix := range s.prefixes {
		if len(prefix) <= len(topic) && string(topic[:len(prefix)]) == prefix {
			return true
		}
	}
	return false
}

// follow serves one subscriber until it has gone.
func (p *Publisher) follow(ctx context.Context, c *Conn) error {
	s := &subscriber{queue: make(chan []byte, p.limits.queueMessages), prefixes: make(map[string]int)}
	p.mu.Lock()
	p.subscribers[s] = true
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		delete(p.subscribers, s)
		p.mu.Unlock()
	}()
	ctx, cancel := context.WithCancel(ctx)
	writer := make(chan error, 1)
	go func() {
		err := p.writeQueue(ctx, c, s)
		_ = c.Close() // ends the reading below
		writer <- err
	}()
	readErr := s.readSubscriptions(c)
	cancel()
	_ = c.Close()
	if err := <-writer; err != nil {
		return err
	}
	return readErr
}

// writeBatchBytes is about how much is written at once, of several messages.
const writeBatchBytes = 128 << 10

// writeQueue writes the queued messages, as many at a time as there are.
func (p *Publisher) writeQueue(ctx context.Context, c *Conn, s *subscriber) error {
	var batch net.Buffers
	for {
		var first []byte
		select {
		case first = <-s.queue:
		case <-ctx.Done():
			return nil
		}
		batch = append(batch[:0], first)
		size := len(first)
	more:
		for size < writeBatchBytes {
			select {
			case next := <-s.queue:
				batch = append(batch, next)
				size += len(next)
			default:
				break more
			}
		}
		n := len(batch)
		if err := c.sendRaw(batch); err != nil {
			return fmt.Errorf("write to a subscriber: %w", err)
		}
		s.queued.Add(-int64(size))
		p.sent.Add(uint64(n))
		clear(batch)
	}
}

// sendRaw writes messages in their wire form.
func (c *Conn) sendRaw(messages net.Buffers) error {
	c.write.Lock()
	defer c.write.Unlock()
	if len(messages) == 1 {
		_, err := c.writeRaw(messages[0])
		return err
	}
	c.out = c.out[:0]
	for _, m := range messages {
		c.out = append(c.out, m...)
	}
	return c.flush()
}

// readSubscriptions follows the subscriber's requests: messages that begin with 1 or 0 in ZMTP 3.0, commands in
// 3.1.
func (s *subscriber) readSubscriptions(c *Conn) error {
	var m Message
	for {
		m.reset()
		command, err := c.readMessage(&m)
		if err != nil {
			return err
		}
		frame := m.Frame(0)
		switch {
		case command:
			name, body, err := c.handleCommand(frame)
			if err != nil {
				return err
			}
			switch name {
			case "SUBSCRIBE":
				err = s.subscribe(body, true)
			case "CANCEL":
				err = s.subscribe(body, false)
			}
			if err != nil {
				return err
			}
		case m.Len() == 1 && len(frame) > 0 && frame[0] <= 1:
			if err := s.subscribe(frame[1:], frame[0] == 1); err != nil {
				return err
			}
		}
	}
}

func (s *subscriber) subscribe(topic []byte, on bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := string(topic)
	switch {
	case on && len(s.prefixes) >= maxSubscriptions && s.prefixes[key] == 0:
		return fmt.Errorf("%w: more than %d subscriptions", ErrProtocol, maxSubscriptions)
	case on:
		s.prefixes[key]++
	case s.prefixes[key] > 1:
		s.prefixes[key]--
	default:
		delete(s.prefixes, key)
	}
	return nil
}
