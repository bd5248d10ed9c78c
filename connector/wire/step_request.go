package wire

import (
	"github.com/tinylib/msgp/msgp"

	"github.com/kvconn/kvconn/connector"
)

// AppendStep appends the body of a step request.
func AppendStep(b []byte, m *connector.StepRequest) []byte {
	b = msgp.AppendMapHeader(b, 4)
	b = msgp.AppendString(b, "allocs")
	b = msgp.AppendArrayHeader(b, uint32(len(m.Allocs)))
	for i := range m.Allocs {
		a := &m.Allocs[i]
		b = msgp.AppendMapHeader(b, 5)
		b = msgp.AppendString(b, "r")
		b = msgp.AppendString(b, a.Request)
		b = msgp.AppendString(b, "blocks")
		b = appendTables(b, a.Blocks)
		b = msgp.AppendString(b, "group_computed")
		b = msgp.AppendArrayHeader(b, uint32(len(a.GroupComputed)))
		for _, n := range a.GroupComputed {
			b = msgp.AppendInt(b, n)
		}
		b = msgp.AppendString(b, "computed")
		b = msgp.AppendInt(b, a.Computed)
		b = msgp.AppendString(b, "external")
		b = msgp.AppendInt(b, a.External)
	}
	b = msgp.AppendString(b, "scheduled")
	b = msgp.AppendArrayHeader(b, uint32(len(m.Scheduled)))
	for i := range m.Scheduled {
		b = appendScheduled(b, &m.Scheduled[i])
	}
	b = msgp.AppendString(b, "preempted")
	b = appendStrings(b, m.Preempted)
	b = msgp.AppendString(b, "finished")
	return appendStrings(b, m.Finished)
}

func appendScheduled(b []byte, s *connector.Scheduled) []byte {
	b = msgp.AppendMapHeader(b, 7)
	b = msgp.AppendString(b, "r")
	b = msgp.AppendString(b, s.Request)
	b = msgp.AppendString(b, "blocks")
	b = appendTables(b, s.NewBlocks)
	b = msgp.AppendString(b, "reset")
	b = msgp.AppendBool(b, s.Reset)
	b = msgp.AppendString(b, "computed")
	b = msgp.AppendInt(b, s.Computed)
	b = msgp.AppendString(b, "count")
	b = msgp.AppendInt(b, s.Count)
	b = msgp.AppendString(b, "from")
	b = msgp.AppendInt(b, s.From)
	b = msgp.AppendString(b, "tokens")
	return appendU32s(b, s.NewTokens)
}

func appendStrings(b []byte, v []string) []byte {
	b = msgp.AppendArrayHeader(b, uint32(len(v)))
	for _, s := range v {
		b = msgp.AppendString(b, s)
	}
	return b
}

// appendTables appends the block ids of each layer group.
func appendTables(b []byte, tables [][]uint32) []byte {
	b = msgp.AppendArrayHeader(b, uint32(len(tables)))
	for _, t := range tables {
		b = appendU32s(b, t)
	}
	return b
}
