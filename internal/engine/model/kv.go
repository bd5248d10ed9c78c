package model

// KV is the paged memory of a KV cache, as the model sees it: for each layer the planes of
// its KV heads, wherever the memory of the rank that owns a head lies.
type KV struct {
	BlockSize int
	// Copies is the number of planes that hold the same KV head, where ranks replicate it;
	// 0 means one. Each serves its own share of the query heads.
	Copies int
	// Planes are, layer by layer, those of each KV head and copy.
	Planes [][]Plane
}

// Plane is the memory of one KV head in one layer: of block b the PlaneFloats floats at
// b*BlockStride. They are the keys of BlockSize tokens and then the values, values
// transposed so that the numbers of one dimension are neighbours.
type Plane struct {
	Data        []float32
	BlockStride int
}

// copies is Copies, at least one.
func (kv *KV) copies() int { return max(kv.Copies, 1) }

// head returns the keys and the values of one plane and block; only the first
// tokens are filled.
func (kv *KV) head(layer int, block uint32, plane, dim, tokens int) (keys, values matrix) {
	size := kv.BlockSize * dim
	p := &kv.Planes[layer][plane]
	page := p.Data[int(block)*p.BlockStride:]
	keys = matrix{rows: tokens, width: dim, stride: dim, data: page[:size]}
	values = matrix{rows: dim, width: tokens, stride: kv.BlockSize, data: page[size : 2*size]}
	return keys, values
}
