package event

import (
	"bytes"
	"math"
	"slices"

	"github.com/tinylib/msgp/msgp"
	"github.com/zeebo/xxh3"
)

// maxExtraEach is how many bytes of extra keys the blocks of an event may share.
const maxExtraEach = 64

func (d *Decoder) readExtra() error {
	if d.r.isNil() {
		return nil
	}
	n, err := d.r.array()
	if err != nil {
		return err
	}
	if n > d.maxBlocks {
		return d.r.malformed("too many blocks")
	}
	start := d.r.b
	if len(d.stored.Extra) > 0 { // a second list: nothing says which block its keys belong to
		for range n {
			if err := d.r.skip(); err != nil {
				return err
			}
		}
		d.mixedExtra, d.allExtra = true, d.r.read(d.fromExtra)
		return nil
	}
	d.extra = slices.Grow(d.extra[:0], n)[:n]
	some := false
	for k := range d.extra {
		d.extra[k] = nil
		if d.r.isNil() {
			continue
		}
		from := d.r.b
		if err := d.r.skip(); err != nil {
			return err
		}
		d.extra[k], some = d.r.read(from), true
	}
	if some {
		d.stored.Extra, d.fromExtra, d.allExtra = d.extra, start, d.r.read(start)
	}
	return nil
}

// finishExtra takes the adapter's name and the salt out of the extra keys, once the whole event has been read.
func (d *Decoder) finishExtra() error {
	e := &d.stored
	if len(e.Extra) == 0 {
		return nil
	}
	if len(e.Extra) != len(e.Hashes) || d.mixedExtra { // not one list per block: they may be any block's
		e.Extra = slices.Grow(e.Extra[:0], len(e.Hashes))[:len(e.Hashes)]
		all := d.allExtra
		if len(all) > maxExtraEach { // a small message must not grow with the number of blocks
			d.extraDigest = xxh3.Hash128(all).Bytes()
			all = d.extraDigest[:]
		}
		for k := range e.Extra {
			e.Extra[k] = all
		}
		d.extra = e.Extra
		return nil
	}
	some := false
	for k, raw := range e.Extra {
		if raw == nil {
			continue
		}
		plain, err := d.plainExtra(raw, k == 0 && !e.HasParent)
		if err != nil {
			return err
		}
		if plain {
			e.Extra[k] = nil
		} else {
			some = true
		}
	}
	if !some {
		e.Extra = e.Extra[:0]
	}
	return nil
}

// plainExtra reports whether a block's extra keys are only the adapter's name and, on a prompt's first block,
// one more string, which is then the salt. Each accounts for one string: a salt may be the same text as the
// adapter's name. An image's identifier in that place is taken for a salt: the engine hashes both alike.
func (d *Decoder) plainExtra(raw []byte, first bool) (bool, error) {
	r := newReader(raw)
	if !r.is(msgp.ArrayType) {
		return false, nil
	}
	n, err := r.array()
	if err != nil {
		return false, err
	}
	adapter, salt := len(d.stored.LoRAName) > 0, first && len(d.stored.Salt) > 0
	var rest []byte
	others := 0
	for range n {
		if !r.is(msgp.StrType) {
			return false, nil
		}
		text, err := r.text()
		if err != nil {
			return false, err
		}
		switch {
		case adapter && bytes.Equal(text, d.stored.LoRAName):
			adapter = false
		case salt && bytes.Equal(text, d.stored.Salt):
			salt = false
		default:
			rest = text
			others++
		}
	}
	if others == 1 && first && len(d.stored.Salt) == 0 {
		d.stored.Salt = rest
		return true, nil
	}
	return others == 0, nil
}

// finishTokens makes a block's tokens an extra key of it if some are no tokens: SGLang has numbers of more than
// 32 bits in the place of an image.
func (d *Decoder) finishTokens() error {
	e := &d.stored
	n := len(e.Hashes)
	if !d.wideTokens || n == 0 || len(e.Tokens)%(4*n) != 0 {
		return nil
	}
	if len(e.Extra) == 0 {
		e.Extra = slices.Grow(d.extra[:0], n)[:n]
		clear(e.Extra)
		d.extra = e.Extra
	}
	r := newReader(d.fromTokens)
	for k := range e.Extra {
		from, wide := r.b, false
		for range len(e.Tokens) / 4 / n {
			t, err := r.token()
			if err != nil {
				return err
			}
			wide = wide || t > math.MaxUint32
		}
		if wide {
			e.Extra[k] = append(r.read(from), e.Extra[k]...)
		}
	}
	return nil
}
