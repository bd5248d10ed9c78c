package wire

import (
	"github.com/tinylib/msgp/msgp"

	"github.com/kvconn/kvconn/connector"
)

// maxBlocks bounds the block ids of one list: a block holds a token at least.
const maxBlocks = connector.MaxTokens

// AppendMatch appends the body of a match request.
func AppendMatch(b []byte, m *connector.MatchRequest) []byte {
	b = msgp.AppendMapHeader(b, 10)
	b = msgp.AppendString(b, "r")
	b = msgp.AppendString(b, m.Request)
	b = msgp.AppendString(b, "from")
	b = msgp.AppendInt(b, m.From)
	b = msgp.AppendString(b, "tokens")
	b = appendU32s(b, m.Tokens)
	b = msgp.AppendString(b, "prompt")
	b = msgp.AppendInt(b, m.PromptTokens)
	b = msgp.AppendString(b, "computed")
	b = msgp.AppendInt(b, m.Computed)
	b = msgp.AppendString(b, "spans")
	b = appendSpans(b, m.Spans)
	b = msgp.AppendString(b, "salt")
	b = msgp.AppendString(b, m.Scope.Salt)
	b = msgp.AppendString(b, "lora")
	b = msgp.AppendString(b, m.Scope.LoRA)
	b = msgp.AppendString(b, "no_load")
	b = msgp.AppendBool(b, m.NoLoad)
	b = msgp.AppendString(b, "no_save")
	return msgp.AppendBool(b, m.NoSave)
}

// DecodeMatch fills m from the body of a match request. It uses the memory of m.Tokens
// and m.Spans again; strings and span ids are views of the body, valid as long as it is.
func DecodeMatch(body []byte, m *connector.MatchRequest) error {
	*m = connector.MatchRequest{Tokens: m.Tokens[:0], Spans: m.Spans[:0]}
	d := decoder{b: body}
	d.fields(func(key []byte) bool {
		switch string(key) {
		case "r":
			m.Request = d.view("r", connector.MaxIDBytes)
		case "from":
			m.From = int(d.uint("from", connector.MaxTokens))
		case "tokens":
			m.Tokens = d.appendU32s(m.Tokens, "tokens", connector.MaxTokens)
		case "prompt":
			m.PromptTokens = int(d.uint("prompt", maxNumber))
		case "computed":
			m.Computed = int(d.uint("computed", maxNumber))
		case "spans":
			m.Spans = d.appendSpans(m.Spans)
		case "salt":
			m.Scope.Salt = d.view("salt", connector.MaxScopeBytes)
		case "lora":
			m.Scope.LoRA = d.view("lora", connector.MaxScopeBytes)
		case "no_load":
			m.NoLoad = d.bool("no_load")
		case "no_save":
			m.NoSave = d.bool("no_save")
		default:
			return false
		}
		return true
	})
	return d.end()
}

func appendSpans(b []byte, spans []connector.Span) []byte {
	b = msgp.AppendArrayHeader(b, uint32(len(spans)))
	for i := range spans {
		b = msgp.AppendArrayHeader(b, 3)
		b = msgp.AppendInt(b, spans[i].Start)
		b = msgp.AppendInt(b, spans[i].End)
		b = msgp.AppendBytes(b, spans[i].ID)
	}
	return b
}

func (d *decoder) appendSpans(out []connector.Span) []connector.Span {
	for range d.array("spans", connector.MaxSpans) {
		if !d.tuple("span", 3) {
			return out
		}
		out = append(out, connector.Span{
			Start: int(d.uint("span start", connector.MaxTokens)), End: int(d.uint("span end", connector.MaxTokens)),
			ID: d.bytes("span id", connector.MaxSpanIDBytes),
		})
	}
	return out
}

// AppendOffer appends the body of the answer to match.
func AppendOffer(b []byte, o connector.Offer) []byte {
	b = msgp.AppendMapHeader(b, 2)
	b = msgp.AppendString(b, "tokens")
	b = msgp.AppendInt(b, o.Tokens)
	b = msgp.AppendString(b, "async")
	return msgp.AppendBool(b, o.Async)
}

// DecodeOffer fills o from the body of the answer to match.
func DecodeOffer(body []byte, o *connector.Offer) error {
	d := decoder{b: body}
	d.fields(func(key []byte) bool {
		switch string(key) {
		case "tokens":
			o.Tokens = int(d.uint("tokens", maxNumber))
		case "async":
			o.Async = d.bool("async")
		default:
			return false
		}
		return true
	})
	return d.end()
}

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

// DecodeStep fills m from the body of a step request.
func DecodeStep(body []byte, m *connector.StepRequest) error {
	*m = connector.StepRequest{}
	d := decoder{b: body}
	d.fields(func(key []byte) bool {
		switch string(key) {
		case "allocs":
			m.Allocs = make([]connector.Alloc, d.array("allocs", connector.MaxStepRequests))
			for i := range m.Allocs {
				d.alloc(&m.Allocs[i])
			}
		case "scheduled":
			m.Scheduled = make([]connector.Scheduled, d.array("scheduled", connector.MaxStepRequests))
			for i := range m.Scheduled {
				d.scheduled(&m.Scheduled[i])
			}
		case "preempted":
			m.Preempted = d.strings("preempted")
		case "finished":
			m.Finished = d.strings("finished")
		default:
			return false
		}
		return true
	})
	return d.end()
}

func (d *decoder) alloc(a *connector.Alloc) {
	if d.err != nil {
		return
	}
	d.fields(func(key []byte) bool {
		switch string(key) {
		case "r":
			a.Request = d.str("r", connector.MaxIDBytes)
		case "blocks":
			a.Blocks = d.tables("blocks")
		case "group_computed":
			if n := d.array("group_computed", connector.MaxGroups); n > 0 {
				a.GroupComputed = make([]int, n)
			}
			for i := range a.GroupComputed {
				a.GroupComputed[i] = int(d.uint("group_computed", maxNumber))
			}
		case "computed":
			a.Computed = int(d.uint("computed", maxNumber))
		case "external":
			a.External = int(d.uint("external", maxNumber))
		default:
			return false
		}
		return true
	})
}

// appendTables appends the block ids of each layer group.
func appendTables(b []byte, tables [][]uint32) []byte {
	b = msgp.AppendArrayHeader(b, uint32(len(tables)))
	for _, t := range tables {
		b = appendU32s(b, t)
	}
	return b
}

func (d *decoder) tables(what string) [][]uint32 {
	n := d.array(what, connector.MaxGroups)
	if n == 0 {
		return nil
	}
	out := make([][]uint32, n)
	for i := range out {
		out[i] = d.u32s(what, maxBlocks)
	}
	return out
}

func (d *decoder) scheduled(s *connector.Scheduled) {
	if d.err != nil {
		return
	}
	d.fields(func(key []byte) bool {
		switch string(key) {
		case "r":
			s.Request = d.str("r", connector.MaxIDBytes)
		case "blocks":
			s.NewBlocks = d.tables("blocks")
		case "reset":
			s.Reset = d.bool("reset")
		case "computed":
			s.Computed = int(d.uint("computed", maxNumber))
		case "count":
			s.Count = int(d.uint("count", maxNumber))
		case "from":
			s.From = int(d.uint("from", connector.MaxTokens))
		case "tokens":
			s.NewTokens = d.u32s("tokens", connector.MaxTokens)
		default:
			return false
		}
		return true
	})
}
