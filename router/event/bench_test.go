package event

import (
	"encoding/binary"
	"testing"
)

// appendStored appends a batch of one BlockStored event of n blocks in the form of vLLM.
func appendStored(b []byte, n, blockSize int, token func(i int) uint32) []byte {
	text := func(s string) { b = append(append(b, 0xa0|byte(len(s))), s...) }
	b = append(b, 0x93, 0xcb, 0, 0, 0, 0, 0, 0, 0, 0, 0x91, 0x88)
	text("type")
	text("BlockStored")
	text("block_hashes")
	b = binary.BigEndian.AppendUint16(append(b, 0xdc), uint16(n))
	for i := range n {
		b = binary.BigEndian.AppendUint64(append(b, 0xcf), uint64(i+1)*0x9e3779b97f4a7c15)
	}
	text("parent_block_hash")
	b = binary.BigEndian.AppendUint64(append(b, 0xcf), 7)
	text("token_ids")
	b = binary.BigEndian.AppendUint16(append(b, 0xdc), uint16(n*blockSize))
	for i := range n * blockSize {
		b = appendToken(b, token(i))
	}
	text("block_size")
	b = append(b, byte(blockSize))
	text("lora_id")
	b = append(b, 0xc0)
	text("medium")
	text("GPU")
	text("group_idx")
	return append(b, 0, 0)
}

// appendToken appends a token id in its shortest form.
func appendToken(b []byte, t uint32) []byte {
	switch {
	case t < 128:
		return append(b, byte(t))
	case t < 256:
		return append(b, 0xcc, byte(t))
	case t < 1<<16:
		return binary.BigEndian.AppendUint16(append(b, 0xcd), uint16(t))
	}
	return binary.BigEndian.AppendUint32(append(b, 0xce), t)
}

// BenchmarkDecode decodes events of 32 blocks of 16 tokens whose ids are spread over a vocabulary of
// 128k, as a current model's are: half of them take 3 bytes and half 5, in no order that a processor could
// learn from a few events.
func BenchmarkDecode(b *testing.B) {
	x := uint32(1)
	payloads := make([][]byte, 512)
	for i := range payloads {
		payloads[i] = appendStored(nil, 32, 16, func(int) uint32 {
			x = x*1664525 + 1013904223
			return x >> 15
		})
	}
	d, h := NewDecoder(), new(discard)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if _, err := d.Decode(payloads[i%len(payloads)], h); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*32), "ns/block")
}
