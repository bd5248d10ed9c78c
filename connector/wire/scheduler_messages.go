package wire

import (
	"github.com/tinylib/msgp/msgp"

	"github.com/kvconn/kvconn/connector"
)

// AppendMatch appends the body of a match request.
func AppendMatch(b []byte, m *connector.MatchRequest) []byte {
	fields := uint32(10)
	if m.Tiers {
		fields++
	}
	if m.Trace != "" {
		fields++
	}
	b = msgp.AppendMapHeader(b, fields)
	b = putString(b, "r", m.Request)
	b = putInt(b, "from", m.From)
	b = putU32s(b, "tokens", m.Tokens)
	b = putInt(b, "prompt", m.PromptTokens)
	b = putInt(b, "computed", m.Computed)
	b = putSpans(b, "spans", m.Spans)
	b = putString(b, "salt", m.Scope.Salt)
	b = putString(b, "lora", m.Scope.LoRA)
	b = putBool(b, "no_load", m.NoLoad)
	b = putBool(b, "no_save", m.NoSave)
	if m.Tiers {
		b = putBool(b, "tiers", true)
	}
	if m.Trace != "" {
		b = putString(b, "trace", m.Trace)
	}
	return b
}

// DecodeMatch fills m from the body of a match request. It uses the memory of m.Tokens
// and m.Spans again; strings and span ids are views of the body, valid as long as it is.
func DecodeMatch(body []byte, m *connector.MatchRequest) error {
	*m = connector.MatchRequest{Tokens: m.Tokens[:0], Spans: m.Spans[:0]}
	d := decoder{b: body}
	return d.message(func(key []byte) {
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
		case "tiers":
			m.Tiers = d.bool("tiers")
		case "trace":
			m.Trace = d.view("trace", connector.MaxTraceBytes)
		}
	})
}

func putSpans(b []byte, key string, spans []connector.Span) []byte {
	b = putArray(b, key, len(spans))
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
	fields, tiers := uint32(2), uint32(0)
	if o.Handoff != nil {
		fields++
	}
	if o.Refused > 0 {
		fields++
	}
	for i := range o.Tiers {
		if o.Tiers[i].Tokens > 0 {
			tiers++
		}
	}
	if tiers > 0 {
		fields++
	}
	b = msgp.AppendMapHeader(b, fields)
	b = putInt(b, "tokens", o.Tokens)
	b = putBool(b, "async", o.Async)
	if o.Handoff != nil {
		b = putBytes(b, "staged", o.Handoff.Append(nil))
	}
	if o.Refused > 0 {
		b = putInt(b, "refused", o.Refused)
	}
	if tiers > 0 {
		b = msgp.AppendMapHeader(msgp.AppendString(b, "tiers"), tiers)
		for i := range o.Tiers {
			if t := &o.Tiers[i]; t.Tokens > 0 {
				b = putInt(b, t.Tier, t.Tokens)
			}
		}
	}
	return b
}

// DecodeOffer fills o from the body of the answer to match.
func DecodeOffer(body []byte, o *connector.Offer) error {
	d := decoder{b: body}
	return d.message(func(key []byte) {
		switch string(key) {
		case "tokens":
			o.Tokens = int(d.uint("tokens", maxNumber))
		case "async":
			o.Async = d.bool("async")
		case "staged":
			o.Handoff = d.handoffOffer()
		case "refused":
			o.Refused = int(d.uint("refused", maxNumber))
		case "tiers":
			o.Tiers = d.tierTokens()
		}
	})
}

func (d *decoder) tierTokens() (out [connector.MaxTiers]connector.TierTokens) {
	n := 0
	d.tiers(func(tier string) {
		out[n] = connector.TierTokens{Tier: tier, Tokens: int(d.uint("tokens of a tier", maxNumber))}
		n++
	})
	return out
}

func (d *decoder) handoffOffer() *connector.HandoffOffer {
	v := d.bytes("staged", MaxBodyBytes)
	if d.err != nil {
		return nil
	}
	o, err := connector.ParseHandoffOffer(v)
	if err != nil {
		d.fail("staged: %v", err)
	}
	return o
}
