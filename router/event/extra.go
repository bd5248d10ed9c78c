package event

import (
	"bytes"
	"slices"
)

// readExtra notes where the extra keys of each block are.
func (d *Decoder) readExtra() error {
	if d.r.isNil() {
		return nil
	}
	n, err := d.r.array()
	if err != nil {
		return err
	}
	if n > d.limits.MaxBlocks {
		return d.r.malformed("too many blocks")
	}
	start := d.r.i
	d.extra = slices.Grow(d.extra[:0], n)[:n]
	some := false
	for k := range d.extra {
		d.extra[k] = nil
		if d.r.isNil() {
			continue
		}
		from := d.r.i
		if err := d.r.skip(); err != nil {
			return err
		}
		d.extra[k], some = d.r.b[from:d.r.i:d.r.i], true
	}
	if some {
		d.stored.Extra, d.allExtra = d.extra, d.r.b[start:d.r.i:d.r.i]
	}
	return nil
}

// finishExtra takes the adapter's name and the salt out of the extra keys, which is possible only when
// the whole event has been read.
func (d *Decoder) finishExtra() error {
	e := &d.stored
	if len(e.Extra) == 0 {
		return nil
	}
	if len(e.Extra) != len(e.Hashes) { // not by block: they may be any block's
		e.Extra = slices.Grow(e.Extra[:0], len(e.Hashes))[:len(e.Hashes)]
		for k := range e.Extra {
			e.Extra[k] = d.allExtra
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

// plainExtra reports whether a block's extra keys are nothing but the adapter's name and, on a prompt's
// first block, one string, which is then the salt. An image's identifier in that place is taken for a
// salt too: no request has such a salt, so that its blocks are never found, as it has to be.
func (d *Decoder) plainExtra(raw []byte, first bool) (bool, error) {
	r := reader{b: raw}
	if !r.isArray() {
		return false, nil
	}
	n, err := r.array()
	if err != nil {
		return false, err
	}
	var rest []byte
	others := 0
	for range n {
		c, _ := r.peek()
		if c&0xe0 != 0xa0 && (c < codeStr8 || c > codeStr32) {
			return false, nil
		}
		text, err := r.text()
		if err != nil {
			return false, err
		}
		if len(d.stored.LoRAName) > 0 && bytes.Equal(text, d.stored.LoRAName) || bytes.Equal(text, d.stored.Salt) {
			continue
		}
		rest = text
		others++
	}
	if others == 1 && first && len(d.stored.Salt) == 0 {
		d.stored.Salt = rest
		return true, nil
	}
	return others == 0, nil
}
