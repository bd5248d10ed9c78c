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
		b = putString(b, "r", a.Request)
		b = msgp.AppendString(b, "blocks")
		b = appendTables(b, a.Blocks)
		b = msgp.AppendString(b, "group_computed")
		b = msgp.AppendArrayHeader(b, uint32(len(a.GroupComputed)))
		for _, n := range a.GroupComputed {
			b = msgp.AppendInt(b, n)
		}
		b = putInt(b, "computed", a.Computed)
		b = putInt(b, "external", a.External)
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
	b = putString(b, "r", s.Request)
	b = msgp.AppendString(b, "blocks")
	b = appendTables(b, s.NewBlocks)
	b = putBool(b, "reset", s.Reset)
	b = putInt(b, "computed", s.Computed)
	b = putInt(b, "count", s.Count)
	b = putInt(b, "from", s.From)
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
