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
	// Blocks is the sequence's block table, long enough for the last of Tokens. The KV
	// of all positions before Start must be there.
	Blocks []uint32
}

// row is one token of a batch.
type row struct {
	token  uint32
	pos    int
	blocks []uint32
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
// the logits behind each chunk's last token. Chunks may share blocks before their Start
// but not at or behind it. The result is valid until the next call.
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
	s.queries = resize(s.queries, n*c.Heads*c.HeadDim)
	s.attended = resize(s.attended, n*c.Heads*c.HeadDim)
	for i, r := range s.rows {
		copy(s.x[i*c.Dim:(i+1)*c.Dim], m.embedding.row(int(r.token)))
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
	for h := range c.KVHeads {
		keys, values := kv.head(layer, r.blocks[r.pos/kv.BlockSize], h, c.HeadDim, kv.BlockSize)
		copy(keys.row(slot), keysValues[h*c.HeadDim:(h+1)*c.HeadDim])
		for i, x := range keysValues[width+h*c.HeadDim : width+(h+1)*c.HeadDim] {
			values.data[i*values.stride+slot] = x
		}
	}
}

// attend computes every row's attention over the positions up to its own.
func (m *Model) attend(kv *KV, layer int) {
	c, s := &m.config, &m.scratch
	cost := 0
	for _, r := range s.rows {
		cost += 2 * (r.pos + 1) * c.Heads * c.HeadDim
	}
	parallel(len(s.rows)*c.KVHeads, cost, func() func(int) {
		var scores, rotated []float32
		return func(task int) {
			i, h := task/c.KVHeads, task%c.KVHeads
			group := c.Heads / c.KVHeads
			at := (i*c.KVHeads + h) * group * c.HeadDim
			r := &s.rows[i]
			scores = resize(scores, group*(r.pos+kv.BlockSize))
			rotated = resize(rotated, group*c.HeadDim)
			m.score(kv, layer, r, h, scores, s.queries[at:at+group*c.HeadDim], rotated)
			for g := range group {
				m.softmax(kv.BlockSize, r.pos+1, group, g, scores)
			}
			m.mix(kv, layer, r, h, s.attended[at:at+group*c.HeadDim], scores)
		}
	})
}

// score computes the products of the query heads that share one KV head with the keys of
// all positions up to the row's. Scores lie block by block and, within a block, query
// head by query head.
func (m *Model) score(kv *KV, layer int, r *row, head int, scores, queries, rotated []float32) {
	c := &m.config
	group, length := c.Heads/c.KVHeads, r.pos+1
	for start := 0; start < length; start += kv.BlockSize {
		n := min(kv.BlockSize, length-start)
		copy(rotated, queries)
		m.rotate(rotated, r.pos-start)
		keys, _ := kv.head(layer, r.blocks[start/kv.BlockSize], head, c.HeadDim, n)
		keys.times(scores[group*start:], rotated, group)
	}
}

// mix adds up the values of all positions up to the row's, weighted by scores.
func (m *Model) mix(kv *KV, layer int, r *row, head int, out, scores []float32) {
	c := &m.config
	group, length := c.Heads/c.KVHeads, r.pos+1
	clear(out)
	for start := 0; start < length; start += kv.BlockSize {
		n := min(kv.BlockSize, length-start)
		_, values := kv.head(layer, r.blocks[start/kv.BlockSize], head, c.HeadDim, n)
		values.plus(out, scores[group*start:], group)
	}
}

// softmax turns the scores of query head g of a group into weights of sum one.
func (m *Model) softmax(blockSize, length, group, g int, scores []float32) {
	scale := float32(scoreGain / math.Sqrt(float64(m.config.HeadDim)))
	most := float32(math.Inf(-1))
	for start := 0; start < length; start += blockSize {
		n := min(blockSize, length-start)
		for _, x := range scores[group*start+g*n:][:n] {
			most = max(most, x)
		}
	}
	var sum float32
	for start := 0; start < length; start += blockSize {
		n := min(blockSize, length-start)
		s := scores[group*start+g*n:][:n]
		for i, x := range s {
			s[i] = exp((x - most) * scale)
			sum += s[i]
		}
	}
	inverse := 1 / sum
	for start := 0; start < length; start += blockSize {
		n := min(blockSize, length-start)
		s := scores[group*start+g*n:][:n]
		for i := range s {
			s[i] *= inverse
		}
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

// head computes the logits behind each chunk's last row.
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
