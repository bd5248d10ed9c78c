package wire

import (
	"github.com/tinylib/msgp/msgp"

	"github.com/kvconn/kvconn/connector"
)

// AppendKeyed appends the body of a present, fetch or put request. request is the id that
// poll will report (fetch only).
func AppendKeyed(b []byte, request string, k *connector.KeyedBlocks) []byte {
	fields := uint32(5)
	if k.Scope != (connector.Scope{}) {
		fields += 2
	}
	b = msgp.AppendMapHeader(b, fields)
	b = putString(b, "r", request)
	b = putInt(b, "group", k.Group)
	b = putBytes(b, "parent", k.Parent[:])
	b = msgp.AppendString(b, "hashes")
	b = msgp.AppendBytesHeader(b, uint32(connector.ProofSize*len(k.Hashes)))
	for i := range k.Hashes {
		b = append(b, k.Hashes[i][:]...)
	}
	b = msgp.AppendString(b, "slots")
	b = appendU32s(b, k.Slots)
	if fields > 5 {
		b = putString(b, "salt", k.Scope.Salt)
		b = putString(b, "lora", k.Scope.LoRA)
	}
	return b
}

// DecodeKeyed fills k from the body of a present, fetch or put request, using its memory
// again, and returns the request id. The scope's strings are views of the body.
func DecodeKeyed(body []byte, k *connector.KeyedBlocks) (request string, err error) {
	*k = connector.KeyedBlocks{Hashes: k.Hashes[:0], Slots: k.Slots[:0]}
	d := decoder{b: body}
	d.fields(func(key []byte) bool {
		switch string(key) {
		case "r":
			request = d.str("r", connector.MaxIDBytes)
		case "group":
			k.Group = int(d.uint("group", connector.MaxGroups))
		case "parent":
			if v := d.bytes("parent", connector.ProofSize); d.err == nil && len(v) != connector.ProofSize && len(v) != 0 {
				d.fail("parent: %d bytes, want %d", len(v), connector.ProofSize)
			} else {
				copy(k.Parent[:], v)
			}
		case "hashes":
			k.Hashes = d.appendHashes(k.Hashes)
		case "slots":
			k.Slots = d.appendU32s(k.Slots, "slots", connector.MaxKeyedBlocks)
		case "salt":
			k.Scope.Salt = d.view("salt", connector.MaxScopeBytes)
		case "lora":
			k.Scope.LoRA = d.view("lora", connector.MaxScopeBytes)
		default:
			return false
		}
		return true
	})
	return request, d.end()
}

func (d *decoder) appendHashes(out []connector.Proof) []connector.Proof {
	v := d.bytes("hashes", connector.ProofSize*connector.MaxKeyedBlocks)
	if len(v)%connector.ProofSize != 0 {
		d.fail("hashes: %d bytes are no whole number of hashes", len(v))
	}
	if d.err != nil {
		return out
	}
	for i := 0; i < len(v); i += connector.ProofSize {
		out = append(out, connector.Proof(v[i:]))
	}
	return out
}

// AppendCount appends the body of an answer that is a number: to present the leading
// blocks that are stored, to load and fetch the loads started.
func AppendCount(b []byte, n int) []byte {
	b = msgp.AppendMapHeader(b, 1)
	return putInt(b, "n", n)
}

// DecodeCount is the inverse of [AppendCount].
func DecodeCount(body []byte) (n int, err error) {
	d := decoder{b: body}
	d.fields(func(key []byte) bool {
		if string(key) != "n" {
			return false
		}
		n = int(d.uint("n", maxNumber))
		return true
	})
	return n, d.end()
}

// AppendCancel appends the body of a cancel request.
func AppendCancel(b []byte, request string) []byte {
	b = msgp.AppendMapHeader(b, 1)
	return putString(b, "r", request)
}

// DecodeCancel is the inverse of [AppendCancel].
func DecodeCancel(body []byte) (request string, err error) {
	d := decoder{b: body}
	d.fields(func(key []byte) bool {
		if string(key) != "r" {
			return false
		}
		request = d.str("r", connector.MaxIDBytes)
		return true
	})
	return request, d.end()
}
