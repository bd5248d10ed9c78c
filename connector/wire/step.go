package wire

import (
	"slices"
	"strings"

	"github.com/tinylib/msgp/msgp"

	"github.com/kvconn/kvconn/connector"
)

// AppendStep appends the body of a step request.
func AppendStep(b []byte, m *connector.StepRequest) []byte {
	fields := uint32(4)
	if m.TellSaves {
		fields++
	}
	if len(m.Adapters) > 0 {
		fields++
	}
	b = msgp.AppendMapHeader(b, fields)
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
	b = putStrings(b, "finished", m.Finished)
	if m.TellSaves {
		b = putBool(b, "tell_saves", true)
	}
	if len(m.Adapters) > 0 {
		b = putArray(b, "adapters", len(m.Adapters))
		for _, a := range m.Adapters {
			b = msgp.AppendString(msgp.AppendString(msgp.AppendArrayHeader(b, 2), a.Name), a.LoRA)
		}
	}
	return b
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
	fields := uint32(2)
	if len(m.Saves) > 0 {
		fields++
	}
	b = msgp.AppendMapHeader(b, fields)
	b = putBytes(b, "meta", m.Metadata)
	b = putArray(b, "loads", len(m.Loads))
	for i := range m.Loads {
		b = appendBlockList(b, m.Loads[i].Request, m.Loads[i].Blocks)
	}
	if len(m.Saves) > 0 {
		b = putArray(b, "saves", len(m.Saves))
		for i := range m.Saves {
			s := &m.Saves[i]
			b = msgp.AppendString(msgp.AppendArrayHeader(b, 4), s.Request)
			b = msgp.AppendInt(msgp.AppendInt(msgp.AppendInt(b, s.Group), s.First), s.Count)
		}
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
		case "saves":
			for range d.array("saves", maxBlocks) {
				if !d.tuple("saves", 4) {
					return
				}
				m.Saves = append(m.Saves, connector.PlannedSave{
					Request: d.str("saves", connector.MaxIDBytes), Group: int(d.uint("group of saves", connector.MaxGroups)),
					First: int(d.uint("first of saves", maxNumber)), Count: int(d.uint("number of saves", maxNumber)),
				})
			}
		}
	})
}

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

// StepDecoder decodes step requests into memory that it uses again, so that the steps of a
// running engine cost no allocation. It is not safe for concurrent use.
type StepDecoder struct {
	m connector.StepRequest
	// All block and token ids of a step lie in numbers, its tables in tables, and its
	// group_computed in ints: what is kept is bounded by one body, whatever its shape.
	numbers []uint32
	tables  [][]uint32
	ints    []int
}

// keepNumbers is the largest memory for ids that is kept between steps: 4 MiB.
const keepNumbers = 1 << 20

// Decode decodes the body of a step request. The slices in the result are valid until the
// next call; its strings may be kept.
func (s *StepDecoder) Decode(body []byte) (step *connector.StepRequest, err error) {
	if cap(s.numbers) > keepNumbers {
		s.numbers = nil
	}
	s.numbers = slices.Grow(s.numbers[:0], len(body)/4)
	s.tables, s.ints = s.tables[:0], s.ints[:0]
	m := &s.m
	old := *m
	*m = connector.StepRequest{}
	d := decoder{b: body}
	err = d.message(func(key []byte) {
		switch string(key) {
		case "allocs":
			m.Allocs = resized(old.Allocs, d.array("allocs", connector.MaxStepRequests))
			for i := range m.Allocs {
				s.alloc(&d, &m.Allocs[i])
			}
		case "scheduled":
			m.Scheduled = resized(old.Scheduled, d.array("scheduled", connector.MaxStepRequests))
			for i := range m.Scheduled {
				s.scheduled(&d, &m.Scheduled[i])
			}
		case "preempted":
			m.Preempted = d.stringsAgain(old.Preempted, "preempted")
		case "finished":
			m.Finished = d.stringsAgain(old.Finished, "finished")
		case "tell_saves":
			m.TellSaves = d.bool("tell_saves")
		case "adapters":
			m.Adapters = d.adapters()
		}
	})
	return m, err
}

func (d *decoder) adapters() []connector.Adapter {
	list := make([]connector.Adapter, d.array("adapters", connector.MaxStepAdapters))
	for i := range list {
		if !d.tuple("adapter", 2) {
			break
		}
		list[i] = connector.Adapter{Name: d.str("adapter", connector.MaxIDBytes), LoRA: d.str("lora", connector.MaxScopeBytes)}
	}
	return list
}

func (s *StepDecoder) alloc(d *decoder, a *connector.Alloc) {
	old := a.Request
	*a = connector.Alloc{}
	if d.err != nil {
		return
	}
	d.fields(func(key []byte) {
		switch string(key) {
		case "r":
			a.Request = d.strAgain(old, "r")
		case "blocks":
			a.Blocks = s.readTables(d)
		case "group_computed":
			from := len(s.ints)
			for range d.array("group_computed", connector.MaxGroups) {
				s.ints = append(s.ints, int(d.uint("group_computed", maxNumber)))
			}
			if len(s.ints) > from {
				a.GroupComputed = s.ints[from:len(s.ints):len(s.ints)]
			}
		case "computed":
			a.Computed = int(d.uint("computed", maxNumber))
		case "external":
			a.External = int(d.uint("external", maxNumber))
		}
	})
}

func (s *StepDecoder) scheduled(d *decoder, r *connector.Scheduled) {
	old := r.Request
	*r = connector.Scheduled{}
	if d.err != nil {
		return
	}
	d.fields(func(key []byte) {
		switch string(key) {
		case "r":
			r.Request = d.strAgain(old, "r")
		case "blocks":
			r.NewBlocks = s.readTables(d)
		case "reset":
			r.Reset = d.bool("reset")
		case "computed":
			r.Computed = int(d.uint("computed", maxNumber))
		case "count":
			r.Count = int(d.uint("count", maxNumber))
		case "from":
			r.From = int(d.uint("from", connector.MaxTokens))
		case "tokens":
			r.NewTokens = s.readNumbers(d, "tokens", connector.MaxTokens)
		}
	})
}

func (s *StepDecoder) readTables(d *decoder) [][]uint32 {
	from := len(s.tables)
	for range d.array("blocks", connector.MaxGroups) {
		s.tables = append(s.tables, s.readNumbers(d, "blocks", maxBlocks))
	}
	if len(s.tables) == from {
		return nil
	}
	return s.tables[from:len(s.tables):len(s.tables)]
}

// readNumbers decodes a bin of little-endian 32-bit numbers.
func (s *StepDecoder) readNumbers(d *decoder, what string, limit int) []uint32 {
	from := len(s.numbers)
	if s.numbers = d.appendU32s(s.numbers, what, limit); len(s.numbers) == from {
		return nil
	}
	return s.numbers[from:len(s.numbers):len(s.numbers)]
}

// resized is s with n elements, keeping what its elements were.
func resized[E any](s []E, n int) []E {
	if n > cap(s) {
		return append(s[:cap(s)], make([]E, n-cap(s))...)
	}
	return s[:n]
}

// strAgain reads a request id. Where it is equal to old, which is the rule from step to
// step, it is old.
func (d *decoder) strAgain(old, what string) string {
	v := d.view(what, connector.MaxIDBytes)
	if v == old {
		return old
	}
	return strings.Clone(v)
}

func (d *decoder) stringsAgain(old []string, what string) []string {
	out := resized(old, d.array(what, connector.MaxStepRequests))
	for i := range out {
		out[i] = d.strAgain(out[i], what)
	}
	return out
}
