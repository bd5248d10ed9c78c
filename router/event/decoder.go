package event

import "github.com/tinylib/msgp/msgp"

// Decoder decodes batches. It keeps its buffers between calls and is for one goroutine.
type Decoder struct {
	// UnknownTypes are events of unknown types, UnknownKeys unknown fields of events, all skipped so far.
	UnknownTypes, UnknownKeys uint64

	// What one message may make a decoder do; tests set less.
	maxEvents, maxBlocks, maxTokens int

	r       reader
	kind    []byte
	stored  Stored
	removed Removed
	hashes  []uint64
	tokens  []byte
	extra   [][]byte
	// allExtra is all that extra keys were read from, fromExtra the message from there on.
	allExtra, fromExtra []byte
	// mixedExtra says that an event has several lists of them; then extraDigest stands for all of them.
	mixedExtra  bool
	extraDigest [16]byte
	// fromTokens is the message from an event's tokens on; wideTokens says that some have more than 32 bits.
	fromTokens []byte
	wideTokens bool
}

// NewDecoder returns a decoder that takes up to 65,536 events of a message, and of an event 262,144 blocks (a
// prompt of 4M tokens in blocks of 16) and 4 Mi token ids (16 MiB of buffer).
func NewDecoder() *Decoder {
	return &Decoder{maxEvents: 1 << 16, maxBlocks: 1 << 18, maxTokens: 4 << 20}
}

// Decode reads one message and calls h for each of its events. It fails with [ErrMalformed]. The events
// before the malformed part have been given to h by then; the rest is lost, so the caller has to rebuild
// that rank's state.
func (d *Decoder) Decode(payload []byte, h Handler) (Batch, error) {
	var batch Batch
	d.r = newReader(payload)
	defer func() { d.r, d.fromExtra, d.fromTokens = reader{}, nil, nil }()
	r := &d.r
	parts, err := r.array()
	if err != nil {
		return batch, err
	}
	if parts < 2 {
		return batch, r.malformed("an envelope of less than 2 parts")
	}
	switch msgp.NextType(r.b) { // the time of publication
	case msgp.Float64Type, msgp.Float32Type, msgp.IntType, msgp.UintType:
	default:
		return batch, r.malformed("a time that is not a number")
	}
	if err := r.skip(); err != nil {
		return batch, err
	}
	if batch.Events, err = r.array(); err != nil {
		return batch, err
	}
	if batch.Events > d.maxEvents {
		return batch, r.malformed("too many events")
	}
	for range batch.Events {
		if err := d.event(h); err != nil {
			return batch, err
		}
	}
	if parts > 2 && !r.isNil() {
		if batch.Rank, err = r.number(1 << 20); err != nil {
			return batch, err
		}
		batch.HasRank = true
	}
	for range parts - 3 { // newer releases may append parts
		if err := r.skip(); err != nil {
			return batch, err
		}
	}
	if len(r.b) > 0 {
		return batch, r.malformed("bytes after the batch")
	}
	return batch, nil
}

func (d *Decoder) event(h Handler) error {
	d.kind, d.mixedExtra, d.wideTokens = nil, false, false
	d.stored = Stored{Group: NoGroup, Hashes: d.hashes[:0], Tokens: d.tokens[:0], Extra: d.extra[:0]}
	var err error
	if d.r.is(msgp.MapType) {
		err = d.mapFields()
	} else {
		err = d.arrayFields()
	}
	if err != nil {
		return err
	}
	switch string(d.kind) {
	case "BlockStored":
		if err := d.finishExtra(); err != nil {
			return err
		}
		if err := d.finishTokens(); err != nil {
			return err
		}
		h.Stored(&d.stored)
	case "BlockRemoved":
		d.removed = Removed{Hashes: d.stored.Hashes, OffGPU: d.stored.OffGPU, Group: d.stored.Group}
		h.Removed(&d.removed)
	case "AllBlocksCleared":
		h.Cleared()
	default:
		d.UnknownTypes++
	}
	return nil
}

// mapFields decodes an event that is a map. Its type may be anywhere.
func (d *Decoder) mapFields() error {
	n, err := d.r.fields()
	if err != nil {
		return err
	}
	for range n {
		name, err := d.r.text()
		if err != nil {
			return err
		}
		if err := d.field(string(name)); err != nil {
			return err
		}
	}
	return nil
}

// arrayField is the name of field i, counted from 1, of the older form of an event.
func arrayField(kind []byte, i int) string {
	stored := [...]string{"type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium",
		"lora_name", "extra_keys", "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window"}
	removed := [...]string{"type", "block_hashes", "medium", "group_idx"}
	switch {
	case string(kind) == "BlockStored" && i < len(stored):
		return stored[i]
	case string(kind) == "BlockRemoved" && i < len(removed):
		return removed[i]
	}
	return ""
}

// arrayFields decodes an event that is an array, its type first and trailing defaults omitted.
func (d *Decoder) arrayFields() error {
	n, err := d.r.array()
	if err != nil {
		return err
	}
	if n == 0 {
		return d.r.malformed("an event without a type")
	}
	if d.kind, err = d.r.text(); err != nil {
		return err
	}
	for i := 1; i < n; i++ {
		if err := d.field(arrayField(d.kind, i)); err != nil {
			return err
		}
	}
	return nil
}
