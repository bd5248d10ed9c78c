package wire

import (
	"github.com/tinylib/msgp/msgp"

	"github.com/kvconn/kvconn/connector"
)

// AppendStepReply appends the body of the answer to step.
func AppendStepReply(b []byte, m *connector.StepReply) []byte {
	b = msgp.AppendMapHeader(b, 2)
	b = putBytes(b, "meta", m.Metadata)
	b = msgp.AppendString(b, "loads")
	b = msgp.AppendArrayHeader(b, uint32(len(m.Loads)))
	for i := range m.Loads {
		b = appendBlockList(b, m.Loads[i].Request, m.Loads[i].Blocks)
	}
	return b
}

// DecodeStepReply fills m from the body of the answer to step. Metadata is a copy.
func DecodeStepReply(body []byte, m *connector.StepReply) error {
	*m = connector.StepReply{}
	d := decoder{b: body}
	d.fields(func(key []byte) bool {
		switch string(key) {
		case "meta":
			if v := d.bytes("meta", MaxBodyBytes); len(v) > 0 {
				m.Metadata = append([]byte(nil), v...)
			}
		case "loads":
			m.Loads = make([]connector.PlannedLoad, d.array("loads", connector.MaxStepRequests))
			for i := range m.Loads {
				m.Loads[i].Request, m.Loads[i].Blocks = d.blockList("loads")
			}
		default:
			return false
		}
		return true
	})
	return d.end()
}

// appendBlockList appends a pair of request id and block ids.
func appendBlockList(b []byte, request string, blocks []uint32) []byte {
	b = msgp.AppendArrayHeader(b, 2)
	b = msgp.AppendString(b, request)
	return appendU32s(b, blocks)
}

func (d *decoder) blockList(what string) (string, []uint32) {
	if !d.tuple(what, 2) {
		return "", nil
	}
	return d.str(what, connector.MaxIDBytes), d.u32s(what, maxBlocks)
}

// AppendLoaded appends the body of a loaded request.
func AppendLoaded(b []byte, m *connector.LoadedReport) []byte {
	b = msgp.AppendMapHeader(b, 2)
	b = msgp.AppendString(b, "done")
	b = appendStrings(b, m.Done)
	b = msgp.AppendString(b, "invalid")
	return appendU32s(b, m.InvalidBlocks)
}

// DecodeLoaded fills m from the body of a loaded request.
func DecodeLoaded(body []byte, m *connector.LoadedReport) error {
	*m = connector.LoadedReport{}
	d := decoder{b: body}
	d.fields(func(key []byte) bool {
		switch string(key) {
		case "done":
			m.Done = d.strings("done")
		case "invalid":
			m.InvalidBlocks = d.u32s("invalid", maxBlocks)
		default:
			return false
		}
		return true
	})
	return d.end()
}

func (d *decoder) strings(what string) []string {
	n := d.array(what, connector.MaxStepRequests)
	if n == 0 {
		return nil
	}
	out := make([]string, n)
	for i := range out {
		out[i] = d.str(what, connector.MaxIDBytes)
	}
	return out
}
