package wire

import (
	"github.com/tinylib/msgp/msgp"

	"github.com/kvconn/kvconn/connector"
)

// AppendLayout appends the body of a register request.
func AppendLayout(b []byte, l *connector.Layout) []byte {
	b = msgp.AppendMapHeader(b, 1)
	b = msgp.AppendString(b, "groups")
	b = msgp.AppendArrayHeader(b, uint32(len(l.Groups)))
	for i := range l.Groups {
		g := &l.Groups[i]
		b = msgp.AppendMapHeader(b, 2)
		b = msgp.AppendString(b, "blocks")
		b = msgp.AppendUint32(b, g.Blocks)
		b = msgp.AppendString(b, "runs")
		b = msgp.AppendArrayHeader(b, uint32(len(g.Runs)))
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
	d.fields(func(key []byte) bool {
		if string(key) != "groups" {
			return false
		}
		l.Groups = make([]connector.GroupLayout, d.array("groups", connector.MaxGroups))
		for i := range l.Groups {
			d.groupLayout(&l.Groups[i])
		}
		return true
	})
	return d.end()
}

func (d *decoder) groupLayout(g *connector.GroupLayout) {
	if d.err != nil {
		return
	}
	d.fields(func(key []byte) bool {
		switch string(key) {
		case "blocks":
			g.Blocks = uint32(d.uint("blocks", 1<<32-1))
		case "runs":
			g.Runs = make([]connector.Run, d.array("runs", connector.MaxRuns))
			for i := range g.Runs {
				d.run(&g.Runs[i])
			}
		default:
			return false
		}
		return true
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
	b = msgp.AppendString(b, "block_bytes")
	b = msgp.AppendArrayHeader(b, uint32(len(blockBytes)))
	for _, n := range blockBytes {
		b = msgp.AppendInt(b, n)
	}
	return b
}
