package wire

import (
	"fmt"

	"github.com/tinylib/msgp/msgp"

	"github.com/kvconn/kvconn/connector"
)

// Roles of a connection.
const (
	RoleScheduler = "scheduler"
	RoleWorker    = "worker"
	// RoleChannel is that of further connections of a worker's session.
	RoleChannel = "channel"
)

// SessionIDBytes is the size of the name of a session.
const SessionIDBytes = 16

// maxNumber bounds counts of tokens, so that sums of a few cannot overflow.
const maxNumber = 1 << 31

// maxBlocks bounds the block ids of one list: a block holds a token at least.
const maxBlocks = connector.MaxTokens

// Hello opens a connection.
type Hello struct {
	// MinVersion and MaxVersion are what the client speaks.
	MinVersion, MaxVersion int
	Role                   string
	// Client is the client's name and version, for logs.
	Client string
	// Engine is the id of the engine instance, equal in its scheduler and workers.
	Engine string
	// Manifest is the namespace manifest as JSON. Channels may leave it out.
	Manifest []byte
	// Rank is the worker's rank (workers only).
	Rank int
	// Handoff is set by engines that cannot report a failed load: they are offered only
	// what is verified and pinned in the host tier, and copy it themselves (handoff mode).
	Handoff bool
	// Session names the session that a channel belongs to (channels only), a view of the body.
	Session []byte
}

// Append appends the body of m to b.
func (m *Hello) Append(b []byte) []byte {
	fields := uint32(7)
	if len(m.Session) > 0 {
		fields++
	}
	b = msgp.AppendMapHeader(b, fields)
	b = msgp.AppendString(b, "versions")
	b = msgp.AppendArrayHeader(b, 2)
	b = msgp.AppendInt(b, m.MinVersion)
	b = msgp.AppendInt(b, m.MaxVersion)
	b = putString(b, "role", m.Role)
	b = putString(b, "client", m.Client)
	b = putString(b, "engine", m.Engine)
	b = putBytes(b, "manifest", m.Manifest)
	b = putInt(b, "rank", m.Rank)
	b = putBool(b, "staged", m.Handoff)
	if len(m.Session) > 0 {
		b = putBytes(b, "session", m.Session)
	}
	return b
}

// DecodeVersions reads the versions of a hello, and nothing else: the rest depends on the
// version that is chosen.
func DecodeVersions(body []byte) (lowest, highest int, err error) {
	d := decoder{b: body}
	err = d.message(func(key []byte) {
		if string(key) == "versions" {
			lowest, highest = d.versions()
		}
	})
	return lowest, highest, err
}

func (d *decoder) versions() (lowest, highest int) {
	if d.tuple("versions", 2) {
		lowest, highest = int(d.uint("version", 1<<16)), int(d.uint("version", 1<<16))
	}
	return lowest, highest
}

// Negotiate chooses the highest version that a client which speaks lowest to highest and
// this package have in common. Errors wrap [connector.ErrVersion].
func Negotiate(lowest, highest int) (int, error) {
	return negotiate(lowest, highest, MinVersion, "")
}

// CheckHandoff reports whether handoff mode can be spoken in the version that was chosen
// from those of a client. Errors wrap [connector.ErrVersion].
func CheckHandoff(lowest, highest int) error {
	_, err := negotiate(lowest, highest, MinHandoffVersion, " in handoff mode")
	return err
}

func negotiate(lowest, highest, least int, mode string) (int, error) {
	if lowest > MaxVersion || highest < least || lowest > highest {
		older := "the engine's connector"
		if lowest > MaxVersion {
			older = "kvconnd"
		}
		return 0, fmt.Errorf("%w: the client speaks protocol %d to %d, this daemon %d to %d%s: update %s",
			connector.ErrVersion, lowest, highest, least, MaxVersion, mode, older)
	}
	return min(highest, MaxVersion), nil
}

// Decode fills m from a body. Manifest is a view of it.
func (m *Hello) Decode(body []byte) error {
	d := decoder{b: body}
	return d.message(func(key []byte) {
		switch string(key) {
		case "versions":
			m.MinVersion, m.MaxVersion = d.versions()
		case "role":
			m.Role = d.str("role", 32)
		case "client":
			m.Client = d.str("client", connector.MaxIDBytes)
		case "engine":
			m.Engine = d.str("engine", connector.MaxIDBytes)
		case "manifest":
			m.Manifest = d.bytes("manifest", connector.MaxManifestBytes)
		case "rank":
			m.Rank = int(d.uint("rank", connector.MaxShards))
		case "staged":
			m.Handoff = d.bool("staged")
		case "session":
			m.Session = d.bytes("session", SessionIDBytes)
		}
	})
}

// HelloReply accepts a connection.
type HelloReply struct {
	Version       int
	Server        string
	Namespace     string
	LoadTimeoutMS int
	// Session names the session to its channels; empty where there can be none. It is a view of the
	// body.
	Session []byte
}

// Append appends the body of m to b.
func (m *HelloReply) Append(b []byte) []byte {
	fields := uint32(4)
	if len(m.Session) > 0 {
		fields++
	}
	b = msgp.AppendMapHeader(b, fields)
	b = putInt(b, "version", m.Version)
	b = putString(b, "server", m.Server)
	b = putString(b, "namespace", m.Namespace)
	b = putInt(b, "load_timeout_ms", m.LoadTimeoutMS)
	if len(m.Session) > 0 {
		b = putBytes(b, "session", m.Session)
	}
	return b
}

// Decode fills m from a body.
func (m *HelloReply) Decode(body []byte) error {
	d := decoder{b: body}
	return d.message(func(key []byte) {
		switch string(key) {
		case "version":
			m.Version = int(d.uint("version", 1<<16))
		case "server":
			m.Server = d.str("server", connector.MaxIDBytes)
		case "namespace":
			m.Namespace = d.str("namespace", 64)
		case "load_timeout_ms":
			m.LoadTimeoutMS = int(d.uint("load_timeout_ms", maxNumber))
		case "session":
			m.Session = d.bytes("session", SessionIDBytes)
		}
	})
}
