package wire

import (
	"github.com/tinylib/msgp/msgp"

	"github.com/kvconn/kvconn/connector"
)

// AppendStep appends the body of a step request.
func AppendStep(b []byte, m *connector.StepRequest) []byte {
	b = msgp.AppendMapHeader(b, 4)
	b = putArray(b, "allocs", len(m.Allocs))
	for i := range m.Allocs {
		a := &m.Allocs[i]
		b = msgp.AppendMapHeader(b, 5)
		b = putString(b, "r", a.Request)
		b = putTables(b, "blocks", a.Blocks)
		b = putArray(b, "group_computed", len(a.GroupComputed))
		for _, n := range a.GroupComputed {
			b = msgp.AppendInt(b, n)
		}
		b = putInt(b, "computed", a.Computed)
		b = putInt(b, "external", a.External)
	}
	b = putArray(b, "scheduled", len(m.Scheduled))
	for i := range m.Scheduled {
		b = appendScheduled(b, &m.Scheduled[i])
	}
	b = putStrings(b, "preempted", m.Preempted)
	return putStrings(b, "finished", m.Finished)
}

func appendScheduled(b []byte, s *connector.Scheduled) []byte {
	b = msgp.AppendMapHeader(b, 7)
	b = putString(b, "r", s.Request)
	b = putTables(b, "blocks", s.NewBlocks)
	b = putBool(b, "reset", s.Reset)
	b = putInt(b, "computed", s.Computed)
	b = putInt(b, "count", s.Count)
	b = putInt(b, "from", s.From)
	return putU32s(b, "tokens", s.NewTokens)
}

func putStrings(b []byte, key string, v []string) []byte {
	b = putArray(b, key, len(v))
	for _, s := range v {
		b = msgp.AppendString(b, s)
	}
	return b
}

// putTables appends the block ids of each layer group.
func putTables(b []byte, key string, tables [][]uint32) []byte {
	b = putArray(b, key, len(tables))
	for _, t := range tables {
		b = appendU32s(b, t)
	}
	return b
}

// AppendStepReply appends the body of the answer to step.
func AppendStepReply(b []byte, m *connector.StepReply) []byte {
	b = msgp.AppendMapHeader(b, 2)
	b = putBytes(b, "meta", m.Metadata)
	b = putArray(b, "loads", len(m.Loads))
	for i := range m.Loads {
		b = appendBlockList(b, m.Loads[i].Request, m.Loads[i].Blocks)
	}
	return b
}

// DecodeStepReply fills m from the body of the answer to step. Metadata is a copy.
func DecodeStepReply(body []byte, m *connector.StepReply) error {
	*m = connector.StepReply{}
	d := decoder{b: body}
	return d.message(func(key []byte) {
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
		}
	})
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
	b = putStrings(b, "done", m.Done)
	return putU32s(b, "invalid", m.InvalidBlocks)
}

// DecodeLoaded fills m from the body of a loaded request.
func DecodeLoaded(body []byte, m *connector.LoadedReport) error {
	*m = connector.LoadedReport{}
	d := decoder{b: body}
	return d.message(func(key []byte) {
		switch string(key) {
		case "done":
			m.Done = d.stringsAgain(nil, "done")
		case "invalid":
			m.InvalidBlocks = d.u32s("invalid", maxBlocks)
		}
	})
}
