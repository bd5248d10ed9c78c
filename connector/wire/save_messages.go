package wire

import (
	"math"

	"github.com/tinylib/msgp/msgp"

	"github.com/kvconn/kvconn/connector"
)

// AppendSave appends the body of a save request, one with an id if m has one.
func AppendSave(b []byte, m *connector.SaveRequest) []byte {
	fields := uint32(1)
	if m.ID != "" {
		fields++
	}
	if m.Revoked > 0 {
		fields++
	}
	b = msgp.AppendMapHeader(b, fields)
	b = putBytes(b, "meta", m.Metadata)
	if m.ID != "" {
		b = putString(b, "r", m.ID)
	}
	if m.Revoked > 0 {
		b = msgp.AppendUint64(msgp.AppendString(b, "revoked"), m.Revoked)
	}
	return b
}

// DecodeSave returns what a save request says. It is a view of the body.
func DecodeSave(body []byte) (m connector.SaveRequest, err error) {
	d := decoder{b: body}
	err = d.message(func(key []byte) {
		switch string(key) {
		case "meta":
			m.Metadata = d.bytes("meta", MaxBodyBytes)
		case "r":
			m.ID = d.view("r", connector.MaxIDBytes)
		case "revoked":
			m.Revoked = d.uint("revoked", math.MaxUint64)
		}
	})
	return m, err
}

// AppendSaveLater appends the body of the answer to a save whose end is reported later.
func AppendSaveLater(b []byte) []byte {
	return putBool(msgp.AppendMapHeader(b, 1), "later", true)
}

// AppendSaveResult appends the body of the answer to a save that has ended.
func AppendSaveResult(b []byte, r connector.SaveResult) []byte {
	return appendSaved(msgp.AppendMapHeader(b, 3), &r)
}

// DecodeSaveResult returns what the answer to a save says: what became of the blocks, or that it is reported later.
func DecodeSaveResult(body []byte) (r connector.SaveResult, later bool, err error) {
	d := decoder{b: body}
	err = d.message(func(key []byte) {
		if string(key) == "later" {
			later = d.bool("later")
			return
		}
		d.saved(key, &r)
	})
	return r, later, err
}

// appendSaved appends the three fields that say what became of the blocks of a save.
func appendSaved(b []byte, r *connector.SaveResult) []byte {
	b = putInt(b, "taken", r.Taken)
	b = putInt(b, "dropped", r.Dropped)
	return putInt(b, "present", r.Present)
}

// saved reads one of these fields.
func (d *decoder) saved(key []byte, r *connector.SaveResult) {
	switch string(key) {
	case "taken":
		r.Taken = int(d.uint("taken", maxNumber))
	case "dropped":
		r.Dropped = int(d.uint("dropped", maxNumber))
	case "present":
		r.Present = int(d.uint("present", maxNumber))
	}
}
