package wire

import (
	"github.com/tinylib/msgp/msgp"

	"github.com/kvconn/kvconn/connector"
)

// AppendMeta appends the body of a load or save request.
func AppendMeta(b []byte, meta []byte) []byte {
	b = msgp.AppendMapHeader(b, 1)
	return putBytes(b, "meta", meta)
}

// DecodeMeta returns the metadata of a load or save request, a view of the body.
func DecodeMeta(body []byte) ([]byte, error) {
	var meta []byte
	d := decoder{b: body}
	d.fields(func(key []byte) bool {
		if string(key) != "meta" {
			return false
		}
		meta = d.bytes("meta", MaxBodyBytes)
		return true
	})
	return meta, d.end()
}

// AppendSaveResult appends the body of the answer to save.
func AppendSaveResult(b []byte, r connector.SaveResult) []byte {
	b = msgp.AppendMapHeader(b, 3)
	b = putInt(b, "taken", r.Taken)
	b = putInt(b, "dropped", r.Dropped)
	return putInt(b, "present", r.Present)
}

// DecodeSaveResult fills r from the body of the answer to save.
func DecodeSaveResult(body []byte, r *connector.SaveResult) error {
	d := decoder{b: body}
	d.fields(func(key []byte) bool {
		switch string(key) {
		case "taken":
			r.Taken = int(d.uint("taken", maxNumber))
		case "dropped":
			r.Dropped = int(d.uint("dropped", maxNumber))
		case "present":
			r.Present = int(d.uint("present", maxNumber))
		default:
			return false
		}
		return true
	})
	return d.end()
}

// AppendFinished appends the body of the answer to poll.
func AppendFinished(b []byte, loads []connector.FinishedLoad) []byte {
	b = msgp.AppendMapHeader(b, 1)
	b = msgp.AppendString(b, "finished")
	b = msgp.AppendArrayHeader(b, uint32(len(loads)))
	for i := range loads {
		b = appendBlockList(b, loads[i].Request, loads[i].FailedBlocks)
	}
	return b
}

// DecodeFinished returns the loads in the answer to poll.
func DecodeFinished(body []byte) ([]connector.FinishedLoad, error) {
	var loads []connector.FinishedLoad
	d := decoder{b: body}
	d.fields(func(key []byte) bool {
		if string(key) != "finished" {
			return false
		}
		n := d.array("finished", connector.MaxStepRequests)
		for range n {
			var l connector.FinishedLoad
			l.Request, l.FailedBlocks = d.blockList("finished")
			loads = append(loads, l)
		}
		return true
	})
	return loads, d.end()
}

// AppendEmpty appends a body without fields.
func AppendEmpty(b []byte) []byte { return msgp.AppendMapHeader(b, 0) }
