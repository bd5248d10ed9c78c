package model

import (
	"fmt"
	"math"
)

// Chunk is a run of consecutive tokens of one sequence that a forward pass computes.
type Chunk struct {
	// Tokens are the token ids, Start the position of the first.
	Tokens []uint32
	Start  int
	// Blocks are the sequence's block tables, one for each layer group, long enough for the
	// last of Tokens. The KV of all positions that Tokens look back on must be there.
	Blocks [][]uint32
	// Adapter, if not 0, is the LoRA adapter: it is added to every token.
	Adapter uint64
	// Content, if there is any, has an element for each of Tokens: one that is not 0 is
	// embedded in the token's place, as an image is in the place of its placeholders.
	Content []uint64
}

// row is one token of a batch.
type row struct {
	token  uint32
	pos    int
	blocks [][]uint32
}

// tileRows is the number of tokens that pass through a layer's matrices together: even,
// as the kernel takes pairs, small enough that one tile's numbers stay in the
// second-level cache and a prompt makes work for every core.
const tileRows = 8

// scratch is the memory of a forward pass: numbers per row of the batch.
type scratch struct {
	rows                 []row
	x, queries, attended []float32
	logits               []float32
}

// Forward computes the chunks of a batch, writes their KV into their blocks and returns
// the logits after each chunk's last token. Chunks may share blocks before their Start
// but not at or after it. The result is valid until the next call.
func (m *Model) Forward(kv *KV, batch []Chunk) [][]float32 {
	m.load(batch)
	for i := range m.layers {
		m.project(kv, i)
		m.attend(kv, i)
		m.feed(i)
	}
	return m.head(batch)
}

// load lays out the batch's rows and looks up their embeddings.
func (m *Model) load(batch []Chunk) {
	c, s := &m.config, &m.scratch
	s.rows = s.rows[:0]
	for _, chunk := range batch {
		for i, token := range chunk.Tokens {
			pos := chunk.Start + i
			if int(token) >= c.Vocab || pos >= c.MaxContext {
				panic(fmt.Sprintf("model: token %d at position %d: vocabulary %d, context %d", token, pos, c.Vocab, c.MaxContext))
			}
			s.rows = append(s.rows, row{token: token, pos: pos, blocks: chunk.Blocks})
		}
	}
	n := len(s.rows)
	s.x = resize(s.x, n*c.Dim)
	x := s.x
	for i := range batch {
		for j := range batch[i].Tokens {
			m.embed(x[:c.Dim], &batch[i], j)
			x = x[c.Dim:]
		}
	}
	s.queries = resize(s.queries, n*c.Heads*c.HeadDim)
	s.attended = resize(s.attended, n*c.Heads*c.HeadDim)
}

// embed writes what one of a chunk's tokens stands for to x.
func (m *Model) embed(x []float32, chunk *Chunk, i int) {
	copy(x, m.embedding.row(int(chunk.Tokens[i])))
	if len(chunk.Content) > 0 && chunk.Content[i] != 0 {
		copy(x, drawn(chunk.Content[i], contentStream, len(x)))
	}
	if chunk.Adapter != 0 {
		for j, v := range drawn(chunk.Adapter, adapterStream, len(x)) {
			x[j] += v
		}
	}
}

func resize(s []float32, n int) []float32 {
	if cap(s) < n {
		return make([]float32, n)
	}
	return s[:n]
}

// project computes every row's query, key and value and writes keys and values to the
// row's page. Keys are rotated by their slot in the block alone; what is left of their
// position comes from the block's place in the table when they are read. So, unlike with
// keys rotated by position, a block in the wrong place shows.
func (m *Model) project(kv *KV, layer int) {
	c, s, w := &m.config, &m.scratch, &m.layers[layer].qkv
	queryWidth := c.Heads * c.HeadDim
	m.tiles(w.rows*c.Dim, func(first, n int) {
		normed := make([]float32, n*c.Dim)
		for i := range n {
			rmsNorm(normed[i*c.Dim:(i+1)*c.Dim], s.x[(first+i)*c.Dim:(first+i+1)*c.Dim], 1)
		}
		out := make([]float32, n*w.rows)
		w.times(out, normed, n)
		for i := range n {
			r, qkv := &s.rows[first+i], out[i*w.rows:(i+1)*w.rows]
			m.rotate(qkv[queryWidth:queryWidth+c.KVHeads*c.HeadDim], r.pos%kv.BlockSize)
			copy(s.queries[(first+i)*queryWidth:], qkv[:queryWidth])
			m.write(kv, layer, r, qkv[queryWidth:])
		}
	})
}

// rotate turns the pairs of numbers of each head by a position's angles.
func (m *Model) rotate(heads []float32, pos int) {
	half := m.config.HeadDim / 2
	cos, sin := m.cos[pos*half:(pos+1)*half], m.sin[pos*half:(pos+1)*half]
	for ; len(heads) > 0; heads = heads[2*half:] {
		a, b := heads[:half], heads[half:2*half]
		for i := range a {
			x, y := a[i], b[i]
			a[i] = float32(x*cos[i]) - float32(y*sin[i])
			b[i] = float32(x*sin[i]) + float32(y*cos[i])
		}
	}
}

// write stores one token's keys and then values, all KV heads, in its page.
func (m *Model) write(kv *KV, layer int, r *row, keysValues []float32) {
	c := &m.config
	slot := r.pos % kv.BlockSize
	width := c.KVHeads * c.HeadDim
	block := r.blocks[m.group[layer]][r.pos/kv.BlockSize]
	for plane := range c.KVHeads * kv.copies() {
		h := plane / kv.copies()
		keys, values := kv.head(layer, block, plane, c.HeadDim, kv.BlockSize)
		copy(keys.row(slot), keysValues[h*c.HeadDim:(h+1)*c.HeadDim])
		for i, x := range keysValues[width+h*c.HeadDim : width+(h+1)*c.HeadDim] {
			values.data[i*values.stride+slot] = x
		}
	}
}

// span is the run of positions that one row attends to, and where its blocks are.
type span struct {
	blockSize int
	blocks    []uint32
	// from and end are the positions; first is the start of from's block, with which
	// scores begin.
	from, end, first int
}

func (m *Model) span(kv *KV, layer int, r *row) span {
	s := span{blockSize: kv.BlockSize, blocks: r.blocks[m.group[layer]], end: r.pos + 1}
	if w := m.config.Window(layer); w > 0 {
		s.from = max(0, s.end-w)
	}
	s.first = s.from / s.blockSize * s.blockSize
	return s
}

// each calls do for every block of the span: with its id, the position at which it begins
// and the number of its tokens.
func (s *span) each(do func(block uint32, start, n int)) {
	for start := s.first; start < s.end; start += s.blockSize {
		do(s.blocks[start/s.blockSize], start, min(s.blockSize, s.end-start))
	}
}

// attend computes every row's attention over the positions up to its own.
func (m *Model) attend(kv *KV, layer int) {
	c, s := &m.config, &m.scratch
	planes := c.KVHeads * kv.copies()
	group := c.Heads / planes
	cost := 0
	for i := range s.rows {
		x := m.span(kv, layer, &s.rows[i])
		cost += 2 * (x.end - x.first) * c.Heads * c.HeadDim
	}
	parallel(len(s.rows)*planes, cost, func() func(int) {
		var scores, rotated []float32
		return func(task int) {
			i, plane := task/planes, task%planes
			at := (i*planes + plane) * group * c.HeadDim
			r := &s.rows[i]
			x := m.span(kv, layer, r)
			scores = resize(scores, group*(x.end-x.first+kv.BlockSize))
			rotated = resize(rotated, group*c.HeadDim)
			m.score(kv, layer, plane, r.pos, &x, scores, s.queries[at:at+group*c.HeadDim], rotated)
			for g := range group {
				m.softmax(&x, group, g, scores)
			}
			m.mix(kv, layer, plane, &x, s.attended[at:at+group*c.HeadDim], scores)
		}
	})
}

// score computes the products of the query heads that share one plane with the keys of the
// span. Scores lie block by block and, within a block, query head by query head.
func (m *Model) score(kv *KV, layer, plane, pos int, x *span, scores, queries, rotated []float32) {
	c := &m.config
	group := len(queries) / c.HeadDim
	x.each(func(block uint32, start, n int) {
		copy(rotated, queries)
		m.rotate(rotated, pos-start)
		keys, _ := kv.head(layer, block, plane, c.HeadDim, n)
		keys.times(scores[group*(start-x.first):], rotated, group)
	})
}

// mix adds up the values of the span, weighted by scores.
func (m *Model) mix(kv *KV, layer, plane int, x *span, out, scores []float32) {
	c := &m.config
	group := len(out) / c.HeadDim
	clear(out)
	x.each(func(block uint32, start, n int) {
		_, values := kv.head(layer, block, plane, c.HeadDim, n)
		values.plus(out, scores[group*(start-x.first):], group)
	})
}

// softmax turns the scores of query head g of a group into weights of sum one. Positions
// before the window that share a block with it weigh nothing.
func (m *Model) softmax(x *span, group, g int, scores []float32) {
	scale := float32(scoreGain / math.Sqrt(float64(m.config.HeadDim)))
	most := float32(math.Inf(-1))
	eachHead(x, group, g, scores, func(s []float32) {
		for _, v := range s {
			most = max(most, v)
		}
	})
	var sum float32
	eachHead(x, group, g, scores, func(s []float32) {
		for i, v := range s {
			s[i] = exp((v - most) * scale)
			sum += s[i]
		}
	})
	inverse := 1 / sum
	eachHead(x, group, g, scores, func(s []float32) {
		for i := range s {
			s[i] *= inverse
		}
	})
	clear(scores[g*min(x.blockSize, x.end-x.first):][:x.from-x.first])
}

// eachHead calls do with the scores of query head g in every block, those that
// are in the window.
func eachHead(x *span, group, g int, scores []float32, do func([]float32)) {
	for start := x.first; start < x.end; start += x.blockSize {
		n := min(x.blockSize, x.end-start)
		do(scores[group*(start-x.first)+g*n:][max(0, x.from-start):n])
	}
}

// feed adds the attention's result and then the feed-forward part to every row.
func (m *Model) feed(layer int) {
	c, s, l := &m.config, &m.scratch, &m.layers[layer]
	width := c.Heads * c.HeadDim
	m.tiles(c.Dim*(width+3*c.Hidden), func(first, n int) {
		x := s.x[first*c.Dim : (first+n)*c.Dim]
		part := make([]float32, n*c.Dim)
		l.attnOut.times(part, s.attended[first*width:], n)
		addNormed(x, part, c.Dim, attentionGain)

		normed := make([]float32, n*c.Dim)
		for i := range n {
			rmsNorm(normed[i*c.Dim:(i+1)*c.Dim], x[i*c.Dim:(i+1)*c.Dim], 1)
		}
		both := make([]float32, n*2*c.Hidden)
		l.gateUp.times(both, normed, n)
		hidden := make([]float32, n*c.Hidden)
		for i := range n {
			gate, up := both[i*2*c.Hidden:][:c.Hidden], both[i*2*c.Hidden+c.Hidden:][:c.Hidden]
			for j, g := range gate {
				hidden[i*c.Hidden+j] = g / (1 + exp(-g)) * up[j]
			}
		}
		l.down.times(part, hidden, n)
		addNormed(x, part, c.Dim, feedGain)
	})
}

// addNormed adds each row of part, scaled to the root mean square gain, to x.
func addNormed(x, part []float32, width int, gain float32) {
	for i := 0; i < len(x); i += width {
		p := part[i : i+width]
		rmsNorm(p, p, gain)
		for j, v := range p {
			x[i+j] += v
		}
	}
}

// head computes the logits after each chunk's last row.
func (m *Model) head(batch []Chunk) [][]float32 {
	c, s := &m.config, &m.scratch
	s.logits = resize(s.logits, len(batch)*c.Vocab)
	all := make([][]float32, len(batch))
	normed := make([]float32, c.Dim)
	last := -1
	for i, chunk := range batch {
		last += len(chunk.Tokens)
		rmsNorm(normed, s.x[last*c.Dim:(last+1)*c.Dim], 1)
		all[i] = s.logits[i*c.Vocab : (i+1)*c.Vocab : (i+1)*c.Vocab]
		m.output.times(all[i], normed, 1)
	}
	return all
}
