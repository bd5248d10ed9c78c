package gpu

import (
	"cmp"
	"slices"
	"unsafe"
)

// Merge sorts pieces by region and offset and joins those that are neighbours in both
// memories, in place. Drivers call it before they copy: neither a memcpy nor a device's
// copy engine joins neighbours by itself (16 runs of 8 KiB joined took a device from 15 to
// 54 GB/s, vllm#48434).
func Merge(pieces []Piece) []Piece {
	if len(pieces) < 2 {
		return pieces
	}
	if !slices.IsSortedFunc(pieces, comparePieces) {
		slices.SortFunc(pieces, comparePieces)
	}
	out := pieces[:1]
	for i := 1; i < len(pieces); i++ {
		last, p := &out[len(out)-1], &pieces[i]
		if joins(last, p) {
			last.Host = last.Host[:len(last.Host)+len(p.Host)]
			continue
		}
		out = append(out, *p)
	}
	return out
}

func comparePieces(a, b Piece) int {
	return cmp.Or(cmp.Compare(a.Region, b.Region), cmp.Compare(a.Offset, b.Offset))
}

// joins reports whether q follows p in both memories. The capacity of p.Host shows that
// both host parts are of one allocation.
func joins(p, q *Piece) bool {
	if p.Region != q.Region || p.Offset+uint64(len(p.Host)) != q.Offset || cap(p.Host) < len(p.Host)+len(q.Host) {
		return false
	}
	end := uintptr(unsafe.Pointer(unsafe.SliceData(p.Host))) + uintptr(len(p.Host))
	return end == uintptr(unsafe.Pointer(unsafe.SliceData(q.Host)))
}
