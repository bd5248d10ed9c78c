package wire

import (
	"github.com/tinylib/msgp/msgp"

	"github.com/kvconn/kvconn/connector"
)

// Roles of a connection.
const (
	RoleScheduler = "scheduler"
	RoleWorker    = "worker"
)

// maxNumber bounds counts of tokens, so that sums of a few cannot overflow.
const maxNumber = 1 << 31

// Hello opens a connection.
type Hello struct {
	// MinVersion and MaxVersion are what the client speaks.
	MinVersion, MaxVersion int
	Role                   string
	// Client is the client's name and version, for logs.
	Client string
	// Engine is the id of the engine instance, equal in its scheduler and workers.
	Engine string
	// Manifest is the namespace manifest as JSON.
	Manifest []byte
	// Shard is the rank's shard (workers only).
	Shard connector.Shard
}

// Append appends the body of m to b.
func (m *Hello) Append(b []byte) []byte {
	b = msgp.AppendMapHeader(b, 6)
	b = msgp.AppendString(b, "versions")
	b = msgp.AppendArrayHeader(b, 2)
	b = msgp.AppendInt(b, m.MinVersion)
	b = msgp.AppendInt(b, m.MaxVersion)
	b = msgp.AppendString(b, "role")
	b = msgp.AppendString(b, m.Role)
	b = msgp.AppendString(b, "client")
	b = msgp.AppendString(b, m.Client)
	b = msgp.AppendString(b, "engine")
	b = msgp.AppendString(b, m.Engine)
	b = msgp.AppendString(b, "manifest")
	b = msgp.AppendBytes(b, m.Manifest)
	b = msgp.AppendString(b, "shard")
	return msgp.AppendUint16(b, uint16(m.Shard))
}

// Decode fills m from a body. Manifest is a view of it.
func (m *Hello) Decode(body []byte) error {
	d := decoder{b: body}
	d.fields(func(key []byte) bool {
		switch string(key) {
		case "versions":
			if d.tuple("versions", 2) {
				m.MinVersion = int(d.uint("version", 1<<16))
				m.MaxVersion = int(d.uint("version", 1<<16))
			}
		case "role":
			m.Role = d.str("role", 32)
		case "client":
			m.Client = d.str("client", connector.MaxIDBytes)
		case "engine":
			m.Engine = d.str("engine", connector.MaxIDBytes)
		case "manifest":
			m.Manifest = d.bytes("manifest", connector.MaxManifestBytes)
		case "shard":
			m.Shard = connector.Shard(d.uint("shard", connector.MaxShards))
		default:
			return false
		}
		return true
	})
	return d.end()
}

// HelloReply accepts a connection.
type HelloReply struct {
	Version       int
	Server        string
	Namespace     string
	LoadTimeoutMS int
}

// Append appends the body of m to b.
func (m *HelloReply) Append(b []byte) []byte {
	b = msgp.AppendMapHeader(b, 4)
	b = msgp.AppendString(b, "version")
	b = msgp.AppendInt(b, m.Version)
	b = msgp.AppendString(b, "server")
	b = msgp.AppendString(b, m.Server)
	b = msgp.AppendString(b, "namespace")
	b = msgp.AppendString(b, m.Namespace)
	b = msgp.AppendString(b, "load_timeout_ms")
	return msgp.AppendInt(b, m.LoadTimeoutMS)
}

// Decode fills m from a body.
func (m *HelloReply) Decode(body []byte) error {
	d := decoder{b: body}
	d.fields(func(key []byte) bool {
		switch string(key) {
		case "version":
			m.Version = int(d.uint("version", 1<<16))
		case "server":
			m.Server = d.str("server", connector.MaxIDBytes)
		case "namespace":
			m.Namespace = d.str("namespace", 64)
		case "load_timeout_ms":
			m.LoadTimeoutMS = int(d.uint("load_timeout_ms", maxNumber))
		default:
			return false
		}
		return true
	})
	return d.end()
}

// AppendLayout appends the body of a register request.
func AppendLayout(b []byte, l *connector.Layout) []byte {
	b = msgp.AppendMapHeader(b, 2)
	b = msgp.AppendString(b, "blocks")
	b = msgp.AppendUint32(b, l.Blocks)
	b = msgp.AppendString(b, "runs")
	b = msgp.AppendArrayHeader(b, uint32(len(l.Runs)))
	for _, r := range l.Runs {
		b = msgp.AppendArrayHeader(b, 6)
		for _, v := range [...]uint64{uint64(r.Region), r.Offset, uint64(r.Layers), r.LayerStride, r.BlockStride, r.Bytes} {
			b = msgp.AppendUint64(b, v)
		}
	}
	return b
}

// DecodeLayout fills l from the body of a register request. It bounds the numbers;
// connector.Layout.Validate says whether they fit together.
func DecodeLayout(body []byte, l *connector.Layout) error {
	const maxOffset = 1 << 62
	d := decoder{b: body}
	d.fields(func(key []byte) bool {
		switch string(key) {
		case "blocks":
			l.Blocks = uint32(d.uint("blocks", 1<<32-1))
		case "runs":
			l.Runs = make([]connector.Run, d.array("runs", connector.MaxRuns))
			for i := range l.Runs {
				if !d.tuple("run", 6) {
					break
				}
				l.Runs[i] = connector.Run{
					Region:      uint32(d.uint("region", connector.MaxRegions)),
					Offset:      d.uint("offset", maxOffset),
					Layers:      uint32(d.uint("layers", 1<<32-1)),
					LayerStride: d.uint("layer_stride", maxOffset),
					BlockStride: d.uint("block_stride", maxOffset),
					Bytes:       d.uint("bytes", maxOffset),
				}
			}
		default:
			return false
		}
		return true
	})
	return d.end()
}

// AppendRegisterReply appends the body of the answer to register.
func AppendRegisterReply(b []byte, blockBytes int) []byte {
	b = msgp.AppendMapHeader(b, 1)
	b = msgp.AppendString(b, "block_bytes")
	return msgp.AppendInt(b, blockBytes)
}
