package follow

import (
	"context"
	"fmt"
	"io"

	"github.com/kvconn/kvconn/store/object/bucket"
	"github.com/kvconn/kvconn/store/object/format"
	"github.com/kvconn/kvconn/store/seal"
)

// Read reads a whole object, unless it is larger than its kind may be: that is [format.ErrTooLarge].
func Read(ctx context.Context, c bucket.Client, name string, kind format.Kind) ([]byte, bucket.Meta, error) {
	body, err := c.Get(ctx, name, 0, 0)
	if err != nil {
		return nil, bucket.Meta{}, err
	}
	defer body.Close()
	if most := format.MostBytes(kind); body.Length > most {
		return nil, body.Meta, fmt.Errorf("%s: %w: %d bytes, at most %d", name, format.ErrTooLarge, body.Length, most)
	}
	b := make([]byte, body.Length)
	if _, err := io.ReadFull(body, b); err != nil && body.Length > 0 {
		return nil, body.Meta, fmt.Errorf("read %s: %w", name, err)
	}
	return b, body.Meta, nil
}

// Stored is a list as it lies in the bucket.
type Stored struct {
	bucket.Meta
	// Sum is that of its bytes, whatever they are.
	Sum format.Sum
	// List is what they say, nil with Bad.
	List *format.List
	// Bad is why they say nothing to this program: an error of package format or [seal.ErrUnknownKey].
	Bad error
}

// ReadList reads a list. An error is the bucket's; of a list that cannot be used [Stored.Bad] tells.
func ReadList(ctx context.Context, c bucket.Client, name format.Name, id format.BucketID, ring *seal.Ring) (Stored, error) {
	b, meta, err := Read(ctx, c, name.String(), name.Kind)
	s := Stored{Meta: meta}
	switch {
	case format.Damaged(err):
		s.Bad = err
		return s, nil
	case err != nil:
		return s, err
	}
	s.Sum = format.SumOf(b)
	s.List, s.Bad = format.DecodeList(b, name, id, ring)
	if s.Bad != nil {
		s.List = nil
	}
	return s, nil
}
