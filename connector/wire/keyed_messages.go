package wire

import (
	"math"
	"slices"
	"time"

	"github.com/tinylib/msgp/msgp"

	"github.com/kvconn/kvconn/connector"
)

// AppendPresent appends the body of a present request.
func AppendPresent(b []byte, m *connector.PresentRequest) []byte {
	fields := uint32(6)
	if m.Trace != "" {
		fields++
	}
	b = msgp.AppendMapHeader(b, fields)
	b = putString(b, "r", m.Request)
	b = putInt(b, "first", m.First)
	b = putParent(b, &m.Parent, m.AnyParent)
	b = putHashes(b, m.Hashes)
	b = putInt(b, "held", m.Held)
	b = putBool(b, "no_load", m.NoLoad)
	if m.Trace != "" {
		b = putString(b, "trace", m.Trace)
	}
	return b
}

// DecodePresent fills m from the body of a present request, using its memory again. The id and the trace are
// views of the body.
func DecodePresent(body []byte, m *connector.PresentRequest) error {
	*m = connector.PresentRequest{Hashes: m.Hashes[:0]}
	d := decoder{b: body}
	err := d.message(func(key []byte) {
		switch string(key) {
		case "r":
			m.Request = d.view("r", connector.MaxIDBytes)
		case "first":
			m.First = int(d.uint("first", maxNumber))
		case "parent":
			m.Parent = d.hash("parent")
		case "any_parent":
			m.AnyParent = d.bool("any_parent")
		case "hashes":
			m.Hashes = d.appendHashes(m.Hashes[:0], connector.MaxKeyedBlocks)
		case "held":
			m.Held = int(d.uint("held", maxNumber))
		case "no_load":
			m.NoLoad = d.bool("no_load")
		case "trace":
			m.Trace = d.view("trace", connector.MaxTraceBytes)
		}
	})
	if err == nil {
		d.checkParent(&m.Parent, m.AnyParent)
		err = d.err
	}
	return err
}

// AppendPresence appends the body of the answer to present: a bitmap for each layer group.
func AppendPresence(b []byte, groups [][]byte) []byte {
	b = msgp.AppendMapHeader(b, 1)
	b = putArray(b, "groups", len(groups))
	for _, bits := range groups {
		b = msgp.AppendBytes(b, bits)
	}
	return b
}

// DecodePresence returns the bitmaps in the answer to present.
func DecodePresence(body []byte) (groups [][]byte, err error) {
	d := decoder{b: body}
	err = d.message(func(key []byte) {
		if string(key) == "groups" {
			groups = nil
			for range d.array("groups", connector.MaxGroups) {
				groups = append(groups, append([]byte(nil), d.bytes("groups", connector.MaxKeyedBlocks/8)...))
			}
		}
	})
	return groups, err
}

// AppendMove appends the body of a fetch or put request.
func AppendMove(b []byte, m *connector.KeyedMove) []byte {
	fields := uint32(5)
	if m.Wait > 0 {
		fields++
	}
	b = msgp.AppendMapHeader(b, fields)
	b = putString(b, "r", m.ID)
	b = putString(b, "of", m.Request)
	b = putArray(b, "parts", len(m.Parts))
	for i := range m.Parts {
		p := &m.Parts[i]
		b = msgp.AppendMapHeader(b, 4)
		b = putInt(b, "group", p.Group)
		b = putParent(b, &p.Parent, p.AnyParent)
		b = putHashes(b, p.Hashes)
		b = putU32s(b, "slots", p.Slots)
	}
	b = putString(b, "salt", m.Scope.Salt)
	b = putString(b, "lora", m.Scope.LoRA)
	if m.Wait > 0 {
		b = putInt(b, "wait_ms", max(1, int(m.Wait/time.Millisecond))) // 0 would be no wait
	}
	return b
}

// MoveDecoder decodes fetch and put requests into memory that it uses again.
type MoveDecoder struct {
	move   connector.KeyedMove
	hashes []connector.Proof
	slots  []uint32
}

// Decode returns what the body of a fetch or put request says. It is valid until the next call, and
// its strings are views of the body. A part whose hashes and slots differ in number is an error.
func (md *MoveDecoder) Decode(body []byte) (*connector.KeyedMove, error) {
	m := &md.move
	*m = connector.KeyedMove{Parts: m.Parts[:0]}
	md.hashes, md.slots = md.hashes[:0], md.slots[:0]
	d := decoder{b: body}
	err := d.message(func(key []byte) {
		switch string(key) {
		case "r":
			m.ID = d.view("r", connector.MaxIDBytes)
		case "of":
			m.Request = d.view("of", connector.MaxIDBytes)
		case "parts":
			m.Parts, md.hashes, md.slots = m.Parts[:0], md.hashes[:0], md.slots[:0]
			for range d.array("parts", connector.MaxKeyedParts) {
				m.Parts = append(m.Parts, md.part(&d))
			}
		case "salt":
			m.Scope.Salt = d.view("salt", connector.MaxScopeBytes)
		case "lora":
			m.Scope.LoRA = d.view("lora", connector.MaxScopeBytes)
		case "wait_ms":
			m.Wait = time.Duration(d.uint("wait_ms", math.MaxUint32)) * time.Millisecond
		}
	})
	return m, err
}

func (md *MoveDecoder) part(d *decoder) (p connector.KeyedPart) {
	if d.err != nil {
		return p
	}
	hashes, slots := len(md.hashes), len(md.slots)
	d.fields(func(key []byte) {
		switch string(key) {
		case "group":
			p.Group = int(d.uint("group", connector.MaxGroups))
		case "parent":
			p.Parent = d.hash("parent")
		case "any_parent":
			p.AnyParent = d.bool("any_parent")
		case "hashes":
			md.hashes = d.appendHashes(md.hashes[:hashes], connector.MaxKeyedBlocks-hashes)
		case "slots":
			md.slots = d.appendU32s(md.slots[:slots], "slots", connector.MaxKeyedBlocks-slots)
		}
	})
	// Where an append has moved the memory, earlier parts keep what they had.
	p.Hashes, p.Slots = md.hashes[hashes:len(md.hashes):len(md.hashes)], md.slots[slots:len(md.slots):len(md.slots)]
	if d.err == nil && len(p.Hashes) != len(p.Slots) {
		d.fail("a part of %d hashes and %d slots", len(p.Hashes), len(p.Slots))
	}
	d.checkParent(&p.Parent, p.AnyParent)
	return p
}

// AppendTouch appends the body of a touch request.
func AppendTouch(b []byte, m *connector.TouchRequest) []byte {
	b = msgp.AppendMapHeader(b, 4)
	b = putString(b, "r", m.Request)
	b = putHashes(b, m.Hashes)
	b = putInt(b, "tokens", m.Tokens)
	return msgp.AppendFloat64(msgp.AppendString(b, "seconds"), m.Seconds)
}

// DecodeTouch fills m from the body of a touch request, using its memory again. The id is a view
// of the body.
func DecodeTouch(body []byte, m *connector.TouchRequest) error {
	*m = connector.TouchRequest{Hashes: m.Hashes[:0]}
	d := decoder{b: body}
	return d.message(func(key []byte) {
		switch string(key) {
		case "r":
			m.Request = d.view("r", connector.MaxIDBytes)
		case "hashes":
			m.Hashes = d.appendHashes(m.Hashes[:0], connector.MaxKeyedBlocks)
		case "tokens":
			m.Tokens = int(d.uint("tokens", maxNumber))
		case "seconds":
			m.Seconds = d.seconds("seconds")
		}
	})
}

// maxSeconds bounds a time.
const maxSeconds = 1 << 20

// seconds decodes a number that is neither negative nor out of bounds.
func (d *decoder) seconds(what string) float64 {
	if d.err != nil {
		return 0
	}
	v, rest, err := msgp.ReadFloat64Bytes(d.b)
	if !d.check(what, rest, err) {
		return 0
	}
	if math.IsNaN(v) || v < 0 || v > maxSeconds {
		d.fail("%s: %v, want 0 to %d", what, v, maxSeconds)
		return 0
	}
	return v
}

// hash decodes a hash; an empty one is zero.
func (d *decoder) hash(what string) (h connector.Proof) {
	v := d.bytes(what, connector.ProofSize)
	if d.err == nil && len(v) != connector.ProofSize && len(v) != 0 {
		d.fail("%s: %d bytes, want %d", what, len(v), connector.ProofSize)
		return h
	}
	copy(h[:], v)
	return h
}

// putParent appends a parent, or that any will do.
func putParent(b []byte, parent *connector.Proof, anyParent bool) []byte {
	if anyParent {
		return putBool(b, "any_parent", true)
	}
	return putBytes(b, "parent", parent[:])
}

// checkParent refuses a message that names a parent and says that any will do.
func (d *decoder) checkParent(parent *connector.Proof, anyParent bool) {
	if d.err == nil && anyParent && *parent != (connector.Proof{}) {
		d.fail("any_parent beside a parent")
	}
}

func putHashes(b []byte, hashes []connector.Proof) []byte {
	b = msgp.AppendString(b, "hashes")
	b = msgp.AppendBytesHeader(b, uint32(connector.ProofSize*len(hashes)))
	for i := range hashes {
		b = append(b, hashes[i][:]...)
	}
	return b
}

// appendHashes decodes at most limit hashes into memory that out brings.
func (d *decoder) appendHashes(out []connector.Proof, limit int) []connector.Proof {
	v := d.bytes("hashes", connector.ProofSize*limit)
	if len(v)%connector.ProofSize != 0 {
		d.fail("hashes: %d bytes are no whole number of hashes", len(v))
	}
	if d.err != nil {
		return out
	}
	out = slices.Grow(out, len(v)/connector.ProofSize)
	for i := 0; i < len(v); i += connector.ProofSize {
		out = append(out, connector.Proof(v[i:]))
	}
	return out
}
