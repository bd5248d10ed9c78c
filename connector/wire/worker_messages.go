package wire

import (
	"github.com/tinylib/msgp/msgp"

	"github.com/kvconn/kvconn/connector"
)

// AppendLayout appends the body of a register request.
func AppendLayout(b []byte, l *connector.Layout) []byte {
	b = msgp.AppendMapHeader(b, 1)
	b = putArray(b, "groups", len(l.Groups))
	for i := range l.Groups {
		g := &l.Groups[i]
		b = msgp.AppendMapHeader(b, 2)
		b = msgp.AppendString(b, "blocks")
		b = msgp.AppendUint32(b, g.Blocks)
		b = putArray(b, "runs", len(g.Runs))
		for _, r := range g.Runs {
			b = msgp.AppendArrayHeader(b, 6)
			for _, v := range [...]uint64{uint64(r.Region), r.Offset, uint64(r.Layers), r.LayerStride, r.BlockStride, r.Bytes} {
				b = msgp.AppendUint64(b, v)
			}
		}
	}
	return b
}

// DecodeLayout fills l from the body of a register request. It bounds the numbers;
// connector.Layout.Validate says whether they fit together.
func DecodeLayout(body []byte, l *connector.Layout) error {
	d := decoder{b: body}
	return d.message(func(key []byte) {
		if string(key) == "groups" {
			l.Groups = make([]connector.GroupLayout, d.array("groups", connector.MaxGroups))
			for i := range l.Groups {
				d.groupLayout(&l.Groups[i])
			}
		}
	})
}

func (d *decoder) groupLayout(g *connector.GroupLayout) {
	if d.err != nil {
		return
	}
	d.fields(func(key []byte) {
		switch string(key) {
		case "blocks":
			g.Blocks = uint32(d.uint("blocks", 1<<32-1))
		case "runs":
			g.Runs = make([]connector.Run, d.array("runs", connector.MaxRuns))
			for i := range g.Runs {
				d.run(&g.Runs[i])
			}
		}
	})
}

func (d *decoder) run(r *connector.Run) {
	const maxOffset = 1 << 62
	if !d.tuple("run", 6) {
		return
	}
	*r = connector.Run{
		Region:      uint32(d.uint("region", connector.MaxRegions)),
		Offset:      d.uint("offset", maxOffset),
		Layers:      uint32(d.uint("layers", 1<<32-1)),
		LayerStride: d.uint("layer_stride", maxOffset),
		BlockStride: d.uint("block_stride", maxOffset),
		Bytes:       d.uint("bytes", maxOffset),
	}
}

// AppendRegisterReply appends the body of the answer to register: the bytes of a block of
// each layer group.
func AppendRegisterReply(b []byte, blockBytes []int) []byte {
	b = msgp.AppendMapHeader(b, 1)
	b = putArray(b, "block_bytes", len(blockBytes))
	for _, n := range blockBytes {
		b = msgp.AppendInt(b, n)
	}
	return b
}

// AppendMeta appends the body of a load request, or of a save request without an id.
func AppendMeta(b []byte, meta []byte) []byte {
	b = msgp.AppendMapHeader(b, 1)
	return putBytes(b, "meta", meta)
}

// DecodeMeta returns the metadata of a load request, a view of the body.
func DecodeMeta(body []byte) (meta []byte, err error) {
	d := decoder{b: body}
	err = d.message(func(key []byte) {
		if string(key) == "meta" {
			meta = d.bytes("meta", MaxBodyBytes)
		}
	})
	return meta, err
}

// AppendPolled appends the body of the answer to poll.
func AppendPolled(b []byte, p *connector.Polled) []byte {
	b = msgp.AppendMapHeader(b, 2+broughtFields(p.Finished))
	b = putArray(b, "finished", len(p.Finished))
	for i := range p.Finished {
		b = appendBlockList(b, p.Finished[i].Request, p.Finished[i].FailedBlocks)
	}
	b = putArray(b, "stored", len(p.Stored))
	for i := range p.Stored {
		s := &p.Stored[i]
		b = msgp.AppendArrayHeader(b, 4)
		b = msgp.AppendString(b, s.ID)
		for _, n := range [...]int{s.Taken, s.Dropped, s.Present} {
			b = msgp.AppendInt(b, n)
		}
	}
	return appendBrought(b, p.Finished)
}

// DecodePolled returns what the answer to poll says.
func DecodePolled(body []byte) (p connector.Polled, err error) {
	d := decoder{b: body}
	var brought []connector.FinishedLoad
	err = d.message(func(key []byte) {
		switch string(key) {
		case "finished":
			for range d.array("finished", connector.MaxStepRequests) {
				var l connector.FinishedLoad
				l.Request, l.FailedBlocks = d.blockList("finished")
				p.Finished = append(p.Finished, l)
			}
		case "stored":
			for range d.array("stored", connector.MaxStepRequests) {
				p.Stored = append(p.Stored, d.stored())
			}
		case "loaded":
			brought = d.brought()
		}
	})
	if err == nil {
		err = joinBrought(p.Finished, brought)
	}
	return p, err
}

func (d *decoder) stored() (s connector.StoredPut) {
	if d.tuple("stored", 4) {
		s.ID = d.str("stored", connector.MaxIDBytes)
		s.Taken = int(d.uint("taken", maxNumber))
		s.Dropped = int(d.uint("dropped", maxNumber))
		s.Present = int(d.uint("present", maxNumber))
	}
	return s
}

// AppendEmpty appends a body without fields.
func AppendEmpty(b []byte) []byte { return msgp.AppendMapHeader(b, 0) }

// AppendCount appends the body of the answer to load: the number of loads started.
func AppendCount(b []byte, n int) []byte {
	b = msgp.AppendMapHeader(b, 1)
	return putInt(b, "n", n)
}

// DecodeCount is the inverse of [AppendCount].
func DecodeCount(body []byte) (n int, err error) {
	d := decoder{b: body}
	err = d.message(func(key []byte) {
		if string(key) == "n" {
			n = int(d.uint("n", maxNumber))
		}
	})
	return n, err
}

// AppendCancel appends the body of a cancel request.
func AppendCancel(b []byte, request string) []byte {
	b = msgp.AppendMapHeader(b, 1)
	return putString(b, "r", request)
}

// DecodeCancel is the inverse of [AppendCancel].
func DecodeCancel(body []byte) (request string, err error) {
	d := decoder{b: body}
	err = d.message(func(key []byte) {
		if string(key) == "r" {
			request = d.str("r", connector.MaxIDBytes)
		}
	})
	return request, err
}
