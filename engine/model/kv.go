package model

// KV is the paged memory of a KV cache. The page of one layer and block begins at float
// layer*LayerStride + block*BlockStride; inside it lie, per KV head, the keys of
// BlockSize tokens and then the values, values transposed so that the numbers of one
// dimension are neighbours. A page is opaque to everyone else.
type KV struct {
	Data                     []float32
	BlockSize                int
	LayerStride, BlockStride int
}

// head returns the keys and the values of one KV head in a page, of which only the first
// tokens are filled.
func (kv *KV) head(layer int, block uint32, head, dim, tokens int) (keys, values matrix) {
	plane := kv.BlockSize * dim
	page := kv.Data[layer*kv.LayerStride+int(block)*kv.BlockStride+2*head*plane:]
	keys = matrix{rows: tokens, width: dim, stride: dim, data: page[:plane]}
	values = matrix{rows: dim, width: tokens, stride: kv.BlockSize, data: page[plane : 2*plane]}
	return keys, values
}
