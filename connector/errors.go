package connector

import "errors"

// Errors that cross the protocol and that callers decide on.
var (
	// ErrUnknownRequest means that the leader does not know the beginning of a request.
	ErrUnknownRequest = errors.New("unknown request")
	// ErrNotRegistered means that a worker was asked to move blocks before its memory
	// was registered.
	ErrNotRegistered = errors.New("memory not registered")
	// ErrBadRequest means that a value is out of its bounds or does not fit the others.
	ErrBadRequest = errors.New("bad request")
	// ErrVersion means that client and daemon have no protocol version in common.
	ErrVersion = errors.New("no common protocol version")
	// ErrProtocol means that the other side broke the protocol; the connection is closed.
	ErrProtocol = errors.New("protocol error")
)
