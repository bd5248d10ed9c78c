// Package zmtp is the part of ZeroMQ that KV cache events need, in Go alone: the message transport
// protocol ZMTP 3.0 and 3.1 (rfc.zeromq.org/spec/23 and /37) with the NULL mechanism over TCP and Unix
// sockets, a publisher, a replay server, and the client side of both.
//
// It replaces a library because events must not harm a router or a node. The pure Go library
// (go-zeromq/zmq4 v0.17) allocates whatever size a peer's frame claims, so 10 bytes from a broken engine end
// the process; it hands heartbeats to the caller as if they were messages; and its publisher writes to one
// subscriber after another, so one that has stopped reading stops all of them. Here every size is bounded
// before memory is allocated, received messages reuse their memory, and each subscriber has a bounded queue of
// its own: if it is too slow, its messages are dropped and counted. Tests run both sides against that library
// and against libzmq.
package zmtp
