package wire

import (
	"github.com/tinylib/msgp/msgp"

	"github.com/kvconn/kvconn/connector"
)

// maxBlocks bounds the block ids of one list: a block holds a token at least.
const maxBlocks = connector.MaxTokens

// AppendMatch appends the body of a match request.
func AppendMatch(b []byte, m *connector.MatchRequest) []byte {
	b = msgp.AppendMapHeader(b, 8)
	b = msgp.AppendString(b, "r")
	b = msgp.AppendString(b, m.Request)
	b = msgp.AppendString(b, "from")
	b = msgp.AppendInt(b, m.From)
	b = msgp.AppendString(b, "tokens")
	b = appendU32s(b, m.Tokens)
	b = msgp.AppendString(b, "computed")
	b = msgp.AppendInt(b, m.Computed)
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
// again.
func DecodeMatch(body []byte, m *connector.MatchRequest) error {
	*m = connector.MatchRequest{Tokens: m.Tokens[:0]}
	d := decoder{b: body}
	d.fields(func(key []byte) bool {
		switch string(key) {
		case "r":
			m.Request = d.str("r", connector.MaxIDBytes)
		case "from":
			m.From = int(d.uint("from", connector.MaxTokens))
		case "tokens":
			m.Tokens = d.appendU32s(m.Tokens, "tokens", connector.MaxTokens)
		case "computed":
			m.Computed = int(d.uint("computed", maxNumber))
		case "salt":
			m.Scope.Salt = d.str("salt", connector.MaxScopeBytes)
		case "lora":
			m.Scope.LoRA = d.str("lora", connector.MaxScopeBytes)
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
		b = msgp.AppendMapHeader(b, 4)
		b = msgp.AppendString(b, "r")
		b = msgp.AppendString(b, a.Request)
		b = msgp.AppendString(b, "blocks")
		b = appendU32s(b, a.Blocks)
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
	b = appendU32s(b, s.NewBlocks)
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
			a.Blocks = d.u32s("blocks", maxBlocks)
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

func (d *decoder) scheduled(s *connector.Scheduled) {
	if d.err != nil {
		return
	}
	d.fields(func(key []byte) bool {
		switch string(key) {
		case "r":
			s.Request = d.str("r", connector.MaxIDBytes)
		case "blocks":
			s.NewBlocks = d.u32s("blocks", maxBlocks)
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

// AppendStepReply appends the body of the answer to step.
func AppendStepReply(b []byte, m *connector.StepReply) []byte {
	b = msgp.AppendMapHeader(b, 2)
	b = msgp.AppendString(b, "meta")
	b = msgp.AppendBytes(b, m.Metadata)
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
