package event

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/tinylib/msgp/msgp"
)

// Lead bytes that are read without package msgp, where the time goes.
const (
	codeBin8   = 0xc4
	codeUint8  = 0xcc
	codeUint16 = 0xcd
	codeUint64 = 0xcf
)

// maxBlockSize bounds the tokens of a block, as connector.MaxBlockSize does for our own.
const maxBlockSize = 1 << 20

func (d *Decoder) field(name string) (err error) {
	r, e := &d.r, &d.stored
	switch name {
	case "type":
		d.kind, err = r.text()
	case "block_hashes":
		return d.readHashes()
	case "token_ids":
		return d.readTokens()
	case "extra_keys", "mm_keys":
		return d.readExtra()
	case "parent_block_hash":
		if e.HasParent = !r.isNil(); e.HasParent {
			e.Parent, err = d.readHash()
		}
	case "medium":
		var text []byte
		text, err = r.text()
		e.OffGPU = len(text) > 0 && string(text) != "GPU" && string(text) != "gpu"
	case "kv_cache_spec_kind":
		var text []byte
		text, err = r.text()
		e.Spec = specOf(text)
	case "lora_name":
		var text []byte
		if text, err = r.text(); len(text) > 0 {
			e.LoRAName = text
		}
	case "cache_salt":
		e.Salt, err = r.text()
	case "lora_id":
		return d.readLoRAID()
	case "block_size":
		return setInt(r, &e.BlockSize, maxBlockSize)
	case "group_idx":
		return setInt(r, &e.Group, 1<<20)
	case "kv_cache_spec_sliding_window", "locality", "ownership", "session_id": // of no use here
		return r.skip()
	default:
		d.UnknownKeys++
		return r.skip()
	}
	return err
}

// readLoRAID reads an adapter's number, or its name, which some engines send instead.
func (d *Decoder) readLoRAID() (err error) {
	r, e := &d.r, &d.stored
	if r.isNil() {
		return nil
	}
	if r.is(msgp.StrType) {
		name, err := r.text()
		if err == nil && len(e.LoRAName) == 0 {
			e.LoRAName = name
		}
		return err
	}
	e.HasLoRAID = true
	v, _, err := r.integer()
	e.LoRAID = int64(v)
	return err
}

// setInt reads a number from 0 to most; nil leaves what was there.
func setInt(r *reader, to *int, most int) error {
	if r.isNil() {
		return nil
	}
	v, err := r.number(most)
	if err == nil {
		*to = v
	}
	return err
}

func (d *Decoder) readHash() (uint64, error) {
	r := &d.r
	if !r.is(msgp.BinType) {
		v, _, err := r.integer()
		return v, err
	}
	b, err := r.text()
	if err != nil {
		return 0, err
	}
	if len(b) < 8 || len(b) > 64 {
		return 0, r.malformed("a hash that is not of 8 to 64 bytes")
	}
	return binary.BigEndian.Uint64(b[len(b)-8:]), nil
}

func (d *Decoder) readHashes() error {
	n, err := d.r.array()
	if err != nil {
		return err
	}
	if n > d.maxBlocks {
		return d.r.malformed("too many blocks")
	}
	hashes := slices.Grow(d.hashes[:0], n)[:n]
	d.hashes = hashes
	b := d.r.b
	for k := range hashes {
		if len(b) >= 9 && b[0] == codeUint64 { // what vLLM sends
			hashes[k] = binary.BigEndian.Uint64(b[1:])
			b = b[9:]
			continue
		}
		d.r.b = b
		if hashes[k], err = d.readHash(); err != nil {
			return err
		}
		b = d.r.b
	}
	d.r.b = b
	d.stored.Hashes = hashes
	return nil
}

// readTokens reads token ids into their little-endian form.
func (d *Decoder) readTokens() error {
	if d.r.isNil() {
		return nil
	}
	n, err := d.r.array()
	if err != nil {
		return err
	}
	if n > d.maxTokens {
		return d.r.malformed("too many tokens")
	}
	tokens := slices.Grow(d.tokens[:0], 4*n)[:4*n]
	d.tokens, d.fromTokens, d.wideTokens = tokens, d.r.b, false
	done := d.fastTokens(tokens)
	for out := tokens[4*done:]; len(out) >= 4; out = out[4:] {
		t, err := d.r.token()
		if err != nil {
			return err
		}
		d.wideTokens = d.wideTokens || t > math.MaxUint32
		binary.LittleEndian.PutUint32(out, uint32(t))
	}
	d.stored.Tokens = tokens
	return nil
}

// fastTokens reads tokens while they are unsigned integers of up to 32 bits and at least 8 bytes remain, and
// returns how many it has read. Decoding spends its time in this loop. Half the ids of a vocabulary of 128k
// take 3 bytes and half 5, at random: arithmetic that tells them apart costs less than a branch that is
// predicted wrong every other time.
func (d *Decoder) fastTokens(out []byte) (done int) {
	b, i, n := d.r.b, 0, 0
	for ; n+4 <= len(out) && i+8 <= len(b); n += 4 {
		head := b[i : i+8]
		c := head[0]
		var t uint32
		if long := uint(c - codeUint16); long <= 1 {
			t = binary.BigEndian.Uint32(head[1:]) >> (16 * (1 - long) & 31)
			i += 3 + 2*int(long)
		} else if c < 0x80 {
			t = uint32(c)
			i++
		} else if c == codeUint8 {
			t = uint32(head[1])
			i += 2
		} else {
			break
		}
		binary.LittleEndian.PutUint32(out[n:n+4], t)
	}
	d.r.b = b[i:]
	return n / 4
}

// token reads one token id. With speculative decoding (EAGLE), SGLang sends pairs of neighbours, whose first is
// the token at that place. The numbers that it has in the place of an image may have more than 32 bits.
func (r *reader) token() (uint64, error) {
	pair := r.is(msgp.ArrayType)
	if pair {
		if n, err := r.array(); err != nil || n != 2 {
			return 0, r.malformed("a token that is neither a number nor a pair")
		}
	}
	t, negative, err := r.integer()
	if err == nil && pair {
		_, _, err = r.integer()
	}
	if err == nil && negative {
		err = r.malformed("a negative token")
	}
	return t, err
}
