package wire

import (
	"bytes"

	"github.com/kvconn/kvconn/connector"
)

// recode decodes a body and encodes what it said.
func recode(h Header, body []byte) (out []byte, err error) {
	if h.Kind == KindError {
		var m ErrorBody
		err = m.Decode(body)
		return m.Append(nil), err
	}
	if h.Kind == KindReply {
		return recodeReply(h.Op, body)
	}
	switch h.Op {
	case OpHello:
		var m Hello
		err = m.Decode(body)
		return m.Append(nil), err
	case OpMatch:
		var m connector.MatchRequest
		err = DecodeMatch(body, &m)
		return AppendMatch(nil, &m), err
	case OpStep:
		m, err := new(StepDecoder).Decode(body)
		return AppendStep(nil, m), err
	case OpLoaded:
		var m connector.LoadedReport
		err = DecodeLoaded(body, &m)
		return AppendLoaded(nil, &m), err
	case OpRegister:
		var m connector.Layout
		err = DecodeLayout(body, &m)
		return AppendLayout(nil, &m), err
	case OpLoad:
		m, err := DecodeMeta(body)
		return AppendMeta(nil, m), err
	case OpSave:
		m, err := DecodeSave(body)
		return AppendSave(nil, &m), err
	case OpCancel:
		m, err := DecodeCancel(body)
		return AppendCancel(nil, m), err
	case OpPresent:
		var m connector.PresentRequest
		err = DecodePresent(body, &m)
		return AppendPresent(nil, &m), err
	case OpFetch, OpPut:
		m, err := new(MoveDecoder).Decode(body)
		return AppendMove(nil, m), err
	case OpTouch:
		var m connector.TouchRequest
		err = DecodeTouch(body, &m)
		return AppendTouch(nil, &m), err
	}
	return AppendEmpty(nil), nil
}

func recodeReply(op Op, body []byte) (out []byte, err error) {
	switch op {
	case OpHello:
		var m HelloReply
		err = m.Decode(body)
		return m.Append(nil), err
	case OpMatch:
		var m connector.Offer
		err = DecodeOffer(body, &m)
		return AppendOffer(nil, m), err
	case OpStep:
		var m connector.StepReply
		err = DecodeStepReply(body, &m)
		return AppendStepReply(nil, &m), err
	case OpRegister:
		return body, nil // this package's clients do not look at it
	case OpPresent:
		m, err := DecodePresence(body)
		return AppendPresence(nil, m), err
	case OpFetch:
		if bytes.Equal(body, AppendEmpty(nil)) {
			break
		}
		m, err := DecodeFetched(body)
		return AppendFetched(nil, &m), err
	case OpPut:
		if bytes.Equal(body, AppendEmpty(nil)) {
			break
		}
		m, err := DecodePut(body)
		return AppendPut(nil, &m), err
	case OpLoad:
		n, err := DecodeCount(body)
		return AppendCount(nil, n), err
	case OpSave:
		m, later, err := DecodeSaveResult(body)
		if later {
			return AppendSaveLater(nil), err
		}
		return AppendSaveResult(nil, m), err
	case OpPoll:
		m, err := DecodePolled(body)
		return AppendPolled(nil, &m), err
	}
	return AppendEmpty(nil), nil
}
