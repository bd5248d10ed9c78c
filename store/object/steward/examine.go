package steward

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/kvconn/kvconn/store/object/bucket"
	"github.com/kvconn/kvconn/store/object/format"
)

const (
	// mostReports wait, in 3 MB of memory: a check of a bucket may tell of many at one time. What is left out is
	// found again by the next reader.
	mostReports = 1 << 16
	// examineAtOnce are looked at after a merge.
	examineAtOnce = 32
)

// examine looks at objects that readers have found missing or damaged, and removes those that are.
func (t *term) examine(ctx context.Context) error {
	l := &format.List{}
	var looked []format.ObjectID
	var failed error
	for id := range t.reports {
		if len(looked) == examineAtOnce || failed != nil {
			break
		}
		var cause format.Cause
		cause, failed = t.inspect(ctx, id, t.reports[id])
		looked = append(looked, id) // what fails may fail each time, and is to hold up nothing else
		if cause != 0 {
			l.Removed = append(l.Removed, format.Removal{Object: id, When: format.SecondsOf(t.s.o.Now()), Cause: cause})
		}
	}
	if len(l.Removed) > 0 {
		if err := t.publish(ctx, l); err != nil {
			return err
		}
		t.s.counts.bad.Add(uint64(len(l.Removed)))
	}
	for _, id := range looked {
		delete(t.reports, id)
	}
	return failed
}

// inspect says what is wrong with an object, 0 for nothing.
func (t *term) inspect(ctx context.Context, id format.ObjectID, reported format.Cause) (format.Cause, error) {
	o, err := t.footer(ctx, id)
	if err == nil && reported == format.CauseDamaged && t.s.o.Verify != nil {
		err = t.s.o.Verify(ctx, o)
	}
	switch {
	case errors.Is(err, bucket.ErrMissing):
		return format.CauseLost, nil
	case errors.Is(err, bucket.ErrRange), format.Damaged(err):
		return format.CauseDamaged, nil
	case forOthers(err), errors.Is(err, format.ErrForeign), errors.Is(err, bucket.ErrDenied), errors.Is(err, bucket.ErrArchived):
		return 0, nil
	}
	return 0, err
}

// footer reads the end of an object.
func (t *term) footer(ctx context.Context, id format.ObjectID) (*format.Object, error) {
	name := format.DataName(id).String()
	body, err := t.s.o.Client.Get(ctx, name, 0, 1)
	if err != nil {
		return nil, err
	}
	_ = body.Close()
	size := body.Bytes
	if size < format.TrailerBytes {
		return nil, fmt.Errorf("%s: %w: %d bytes", name, format.ErrBad, size)
	}
	b, err := t.part(ctx, name, size-format.TrailerBytes, format.TrailerBytes)
	if err != nil {
		return nil, err
	}
	trailer, err := format.DecodeTrailer(b, id, size)
	if err != nil {
		return nil, err
	}
	if b, err = t.part(ctx, name, trailer.FooterOffset, int64(trailer.FooterBytes)); err != nil {
		return nil, err
	}
	return trailer.DecodeFooter(b, t.id, t.s.o.Ring)
}

// part reads some bytes of an object.
func (t *term) part(ctx context.Context, name string, from, n int64) ([]byte, error) {
	body, err := t.s.o.Client.Get(ctx, name, from, n)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	b := make([]byte, n)
	if _, err := io.ReadFull(body, b); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
			err = fmt.Errorf("%s: %w: it ends early", name, format.ErrBad)
		}
		return nil, err
	}
	return b, nil
}
