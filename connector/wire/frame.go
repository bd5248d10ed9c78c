// Package wire is the framed msgpack protocol between engine processes and kvconnd:
// frames, the bodies of every operation, and connections that carry descriptors.
// docs/protocol.md describes it for other languages.
package wire

import (
	"encoding/binary"
	"fmt"

	"github.com/kvconn/kvconn/connector"
)

// Version bounds: the protocol versions that this package speaks. Version 3 changed the
// form of plans; handoff mode needs it. Version 4 changed the calls by key. Version 5 brought channels, and calls by key that
// wait.
const (
	MinVersion = 2
	MaxVersion = 5
	// MinHandoffVersion is the lowest version of handoff mode.
	MinHandoffVersion = 3
	// MinKeyedVersion is the lowest version of the calls by key.
	MinKeyedVersion = 4
	// MinChannelVersion is the lowest version of channels, and of calls by key that wait.
	MinChannelVersion = 5
)

// Limits of a frame.
const (
	// HeaderBytes is the size of a frame's header.
	HeaderBytes = 20
	// MaxBodyBytes bounds a body. The largest real one is a prompt of
	// connector.MaxTokens tokens (8 MiB); the rest is room for the other fields.
	MaxBodyBytes = connector.MaxFrameBytes
	// MaxFDs bounds the descriptors of a frame: a register request's regions and fence.
	MaxFDs = connector.MaxRegions + 1
)

// Op is an operation of the protocol.
type Op uint8

// Operations; docs/protocol.md says what each does.
const (
	OpHello Op = 1
	// Scheduler.
	OpMatch  Op = 2
	OpStep   Op = 3
	OpLoaded Op = 4
	OpReset  Op = 5
	// Worker.
	OpRegister   Op = 6
	OpUnregister Op = 7
	OpLoad       Op = 8
	OpSave       Op = 9
	OpPoll       Op = 10
	OpCancel     Op = 11
	// Worker, by key.
	OpPresent Op = 12
	OpFetch   Op = 13
	OpPut     Op = 14
	OpTouch   Op = 15
	maxOp        = OpTouch
)

// String returns the operation's name in docs/protocol.md.
func (o Op) String() string {
	names := [...]string{
		"", "hello", "match", "step", "loaded", "reset",
		"register", "unregister", "load", "save", "poll", "cancel", "present", "fetch", "put", "touch",
	}
	if o == 0 || int(o) >= len(names) {
		return fmt.Sprintf("op %d", uint8(o))
	}
	return names[o]
}

// Valid reports whether the protocol has the operation.
func (o Op) Valid() bool { return o > 0 && o <= maxOp }

// Kind tells requests from answers.
type Kind uint8

// Kinds of frames.
const (
	KindRequest Kind = 0
	KindReply   Kind = 1
	KindError   Kind = 2
)

// Header is the fixed part of a frame.
type Header struct {
	Length uint32
	ID     uint32
	Op     Op
	Kind   Kind
	FDs    uint8
	Epoch  uint64
}

// put writes the header to the first HeaderBytes of b.
func (h *Header) put(b []byte) {
	binary.LittleEndian.PutUint32(b[0:], h.Length)
	binary.LittleEndian.PutUint32(b[4:], h.ID)
	b[8], b[9], b[10], b[11] = byte(h.Op), byte(h.Kind), h.FDs, 0
	binary.LittleEndian.PutUint64(b[12:], h.Epoch)
}

// ParseHeader decodes and checks a header of HeaderBytes. Errors wrap
// [connector.ErrProtocol].
func ParseHeader(b []byte) (Header, error) {
	h := Header{
		Length: binary.LittleEndian.Uint32(b[0:]),
		ID:     binary.LittleEndian.Uint32(b[4:]),
		Op:     Op(b[8]),
		Kind:   Kind(b[9]),
		FDs:    b[10],
		Epoch:  binary.LittleEndian.Uint64(b[12:]),
	}
	switch {
	case !h.Op.Valid() || h.Kind > KindError || b[11] != 0:
		return h, fmt.Errorf("%w: not a kvconn frame (header %x)", connector.ErrProtocol, b[:HeaderBytes])
	case h.Length > MaxBodyBytes:
		return h, fmt.Errorf("%w: %s frame of %d bytes, at most %d", connector.ErrProtocol, h.Op, h.Length, MaxBodyBytes)
	case h.FDs > MaxFDs:
		return h, fmt.Errorf("%w: %s frame with %d descriptors, at most %d", connector.ErrProtocol, h.Op, h.FDs, MaxFDs)
	}
	return h, nil
}
