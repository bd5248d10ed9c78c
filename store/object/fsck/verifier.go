package fsck

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/object/bucket"
	"github.com/kvconn/kvconn/store/object/format"
	"github.com/kvconn/kvconn/store/record"
	"github.com/kvconn/kvconn/store/seal"
)

var errSize = errors.New("another size than the lists say")

// tailBytes are read from the end of an object: the footers of most fit.
const tailBytes = 64 << 10

// Verifier reads and verifies whole data objects. It is safe for concurrent use.
type Verifier struct {
	Client bucket.Client
	Bucket format.BucketID
	// Opener opens records, and its ring lists. With SumsOnly lists that are sealed are of another key still.
	Opener record.Opener
}

// Tail reads the footer of an object, which has this many bytes in all.
func (v *Verifier) Tail(ctx context.Context, id format.ObjectID, bytes int64) (*format.Object, error) {
	if bytes < format.TrailerBytes || bytes > format.MaxObjectBytes {
		return nil, fmt.Errorf("data object of %d bytes: %w", bytes, format.ErrBad)
	}
	b, err := v.end(ctx, id, bytes, min(bytes, tailBytes))
	if err != nil {
		return nil, err
	}
	t, err := format.DecodeTrailer(b[len(b)-format.TrailerBytes:], id, bytes)
	if err != nil {
		return nil, err
	}
	if all := int(t.FooterBytes) + format.TrailerBytes; all > len(b) {
		if b, err = v.end(ctx, id, bytes, int64(all)); err != nil {
			return nil, err
		}
	}
	end := len(b) - format.TrailerBytes
	return t.DecodeFooter(b[end-int(t.FooterBytes):end], v.Bucket, v.Opener.Ring)
}

// end reads the last n bytes of an object.
func (v *Verifier) end(ctx context.Context, id format.ObjectID, bytes, n int64) ([]byte, error) {
	body, err := v.Client.Get(ctx, format.DataName(id).String(), bytes-n, n)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	if body.Bytes != bytes {
		return nil, fmt.Errorf("it has %d bytes, not %d: %w", body.Bytes, bytes, errSize)
	}
	b := make([]byte, n)
	_, err = io.ReadFull(body, b)
	return b, err
}

// Records verifies the records of an object, which [Verifier.Tail] has read. It returns how many records, and
// bytes of them, are intact; the error is about the first thing that is not.
func (v *Verifier) Records(ctx context.Context, o *format.Object) (records int, read int64, err error) {
	last, size := o.Slot(len(o.Records) - 1)
	body, err := v.Client.Get(ctx, format.DataName(o.ID).String(), 0, last+size)
	if err != nil {
		return 0, 0, err
	}
	defer body.Close()
	var at int64
	var slot, scratch []byte
	for i := range o.Records {
		from, size := o.Slot(i)
		if int64(cap(slot)) < size {
			slot = make([]byte, size)
		}
		slot = slot[:size]
		if _, err := io.CopyN(io.Discard, body, from-at); err != nil {
			return records, read, err
		}
		if _, err := io.ReadFull(body, slot); err != nil {
			return records, read, err
		}
		at = from + size
		if bad := v.record(o, i, slot, &scratch); bad == nil {
			records, read = records+1, read+size
		} else if err == nil {
			err = fmt.Errorf("record %d of %d, key %v: %w", i, len(o.Records), o.Records[i].Key, recordError(bad))
		}
		if err == nil && ctx.Err() != nil {
			return records, read, context.Cause(ctx)
		}
	}
	return records, read, err
}

// record verifies a record in its slot: that it is the one which the object tells of at that place, and intact.
func (v *Verifier) record(o *format.Object, i int, slot []byte, scratch *[]byte) error {
	var h record.Header
	header, body := slot[:record.HeaderBytes], slot[record.HeaderBytes:]
	if err := v.Opener.Begin(&h, header, &record.Want{
		Store: record.StoreID(o.ID), Slot: uint32(i), Seq: uint64(i) + 1,
		ID:           store.RecordID{Namespace: o.Namespace, Shard: o.Shard, Key: o.Records[i].Key},
		PayloadBytes: int(o.PayloadBytes),
	}); err != nil {
		return err
	}
	if h.Stored() > len(body) || h.Parent != o.Parent(i) {
		return fmt.Errorf("%w: %d bytes of %d, parent %v", format.ErrBad, h.Stored(), len(body), h.Parent)
	}
	payload := body[:h.Stored()]
	if h.Needs != 0 {
		if cap(*scratch) < int(h.PayloadBytes)+seal.TagBytes {
			*scratch = make([]byte, int(h.PayloadBytes)+seal.TagBytes)
		}
		payload = (*scratch)[:h.PayloadBytes]
	}
	return v.Opener.Open(&h, header, payload, body[:h.Stored()])
}

// recordError makes damage of an error that is not about another key or program.
func recordError(err error) error {
	if VerdictOf(err) != "" {
		return err
	}
	return fmt.Errorf("%w: %w", format.ErrBad, err)
}

// Verify reads all records of an object, and returns an error that wraps [format.ErrBad] if one is damaged: for the
// steward, which does not believe reports. What it cannot judge, of another key or program, is not damaged.
func (v *Verifier) Verify(ctx context.Context, o *format.Object) error {
	_, _, err := v.Records(ctx, o)
	switch VerdictOf(err) {
	case Newer, OtherKey, Unsealed:
		return nil
	}
	return err
}
