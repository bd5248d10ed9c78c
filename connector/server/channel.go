package server

import (
	"context"
	"crypto/rand"
	"fmt"
	"sync"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/wire"
)

// maxChannels bounds the channels of a session: an engine has a few threads that call.
const maxChannels = 8

// sessionID names a session to its channels.
type sessionID [wire.SessionIDBytes]byte

// session is a worker's session that may have channels: further connections of the same process,
// whose calls are made on the same [Worker].
type session struct {
	id        sessionID
	peer      Peer
	namespace connector.NamespaceDigest
	// ranks is how many the manifest has.
	rank, ranks int
	worker      Worker

	mu       sync.Mutex
	ended    bool
	channels map[*wire.Conn]context.CancelFunc
	// left is told of each channel that has gone.
	left sync.WaitGroup
}

// sessions are the open sessions that may have channels.
type sessions struct {
	mu   sync.Mutex
	byID map[sessionID]*session
}

// open begins a session.
func (s *sessions) open(peer Peer, m *connector.Manifest, rank int, w Worker) *session {
	x := &session{
		peer: peer, namespace: m.Digest(), rank: rank, ranks: m.Ranks(), worker: w,
		channels: make(map[*wire.Conn]context.CancelFunc),
	}
	_, _ = rand.Read(x.id[:]) // it never fails
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byID == nil {
		s.byID = make(map[sessionID]*session)
	}
	s.byID[x.id] = x
	return x
}

// find returns the session that the hello of a channel names.
func (s *sessions) find(m *wire.Hello, peer Peer) (*session, error) {
	if len(m.Session) != wire.SessionIDBytes {
		return nil, fmt.Errorf("%w: the name of a session has %d bytes, want %d", connector.ErrBadRequest, len(m.Session), wire.SessionIDBytes)
	}
	s.mu.Lock()
	x := s.byID[sessionID(m.Session)]
	s.mu.Unlock()
	switch {
	case x == nil:
		return nil, fmt.Errorf("%w: a channel of a session that is not open", connector.ErrBadRequest)
	// The process number is 0 where the daemon cannot see it.
	case x.peer.PID != peer.PID && x.peer.PID != 0 && peer.PID != 0:
		return nil, fmt.Errorf("%w: a channel from process %d of a session of process %d", connector.ErrBadRequest, peer.PID, x.peer.PID)
	case x.peer.Engine != m.Engine || x.rank != m.Rank:
		return nil, fmt.Errorf("%w: a channel of rank %d of engine %q, its session is of rank %d of %q",
			connector.ErrBadRequest, m.Rank, m.Engine, x.rank, x.peer.Engine)
	}
	if len(m.Manifest) > 0 {
		manifest, err := connector.ParseManifest(m.Manifest)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", connector.ErrBadRequest, err)
		}
		if manifest.Digest() != x.namespace {
			return nil, fmt.Errorf("%w: the manifest of a channel is not that of its session", connector.ErrBadRequest)
		}
	}
	return x, nil
}

// close ends a session and its channels, and returns once no call of theirs is under way.
func (s *sessions) close(x *session) {
	s.mu.Lock()
	delete(s.byID, x.id)
	s.mu.Unlock()
	x.mu.Lock()
	x.ended = true
	for _, cancel := range x.channels {
		cancel()
	}
	x.mu.Unlock()
	x.left.Wait()
}

// join adds a channel, unless there are too many or the session has ended. cancel ends its calls. The
// caller calls leave at its end.
func (x *session) join(conn *wire.Conn, cancel context.CancelFunc) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case x.ended:
		return fmt.Errorf("%w: a channel of a session that is not open", connector.ErrBadRequest)
	case len(x.channels) >= maxChannels:
		return fmt.Errorf("%w: the session has %d channels, the most that one may have", connector.ErrBadRequest, maxChannels)
	}
	x.channels[conn] = cancel
	x.left.Add(1)
	return nil
}

func (x *session) hasEnded() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.ended
}

func (x *session) leave(conn *wire.Conn) {
	x.mu.Lock()
	delete(x.channels, conn)
	x.mu.Unlock()
	x.left.Done()
}
