package wire

import (
	"github.com/tinylib/msgp/msgp"

	"github.com/kvconn/kvconn/connector"
)

// The answers to fetch and put that have waited for the end.

// AppendFetched appends the body of the answer to a fetch that waited.
func AppendFetched(b []byte, r *connector.FetchResult) []byte {
	b = msgp.AppendMapHeader(b, 3)
	b = appendDone(b, r.Done)
	b = msgp.AppendInt64(msgp.AppendString(b, "us"), r.Took.Microseconds())
	return appendTierBlocks(msgp.AppendString(b, "tiers"), r.Tiers)
}

// DecodeFetched returns what the answer to a fetch that waited says.
func DecodeFetched(body []byte) (r connector.FetchResult, err error) {
	d := decoder{b: body}
	err = d.message(func(key []byte) {
		switch string(key) {
		case "done":
			r.Done = d.done()
		case "us":
			r.Took = d.took()
		case "tiers":
			r.Tiers = d.tierBlocks()
		}
	})
	return r, err
}

// AppendPut appends the body of the answer to a put that waited.
func AppendPut(b []byte, r *connector.PutResult) []byte {
	b = msgp.AppendMapHeader(b, 4)
	return appendSaved(appendDone(b, r.Done), &r.SaveResult)
}

// DecodePut returns what the answer to a put that waited says.
func DecodePut(body []byte) (r connector.PutResult, err error) {
	d := decoder{b: body}
	err = d.message(func(key []byte) {
		if string(key) == "done" {
			r.Done = d.done()
			return
		}
		d.saved(key, &r.SaveResult)
	})
	return r, err
}

// appendDone appends a bitmap for each part.
func appendDone(b []byte, done [][]byte) []byte {
	b = putArray(b, "done", len(done))
	for _, bits := range done {
		b = msgp.AppendBytes(b, bits)
	}
	return b
}

func (d *decoder) done() (out [][]byte) {
	for range d.array("done", connector.MaxKeyedParts) {
		out = append(out, append([]byte(nil), d.bytes("done", connector.MaxKeyedBlocks/8)...))
	}
	return out
}
