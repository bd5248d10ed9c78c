package steward

import (
	"context"
	"errors"

	"github.com/kvconn/kvconn/store/object/bucket"
	"github.com/kvconn/kvconn/store/object/format"
	"github.com/kvconn/kvconn/store/object/fsck"
	"github.com/kvconn/kvconn/store/record"
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
	switch err := t.verify(ctx, id, reported == format.CauseDamaged); {
	case errors.Is(err, bucket.ErrMissing):
		return format.CauseLost, nil
	case errors.Is(err, bucket.ErrRange), format.Damaged(err):
		return format.CauseDamaged, nil
	case forOthers(err), errors.Is(err, format.ErrForeign), errors.Is(err, bucket.ErrDenied), errors.Is(err, bucket.ErrArchived):
		return 0, nil
	default:
		return 0, err
	}
}

// verify reads the end of an object, and all its records if they are in doubt too.
func (t *term) verify(ctx context.Context, id format.ObjectID, records bool) error {
	body, err := t.s.o.Client.Get(ctx, format.DataName(id).String(), 0, 1)
	if err != nil {
		return err
	}
	_ = body.Close()
	v := fsck.Verifier{Client: t.s.o.Client, Bucket: t.id, Opener: record.Opener{Ring: t.s.o.Ring, Codec: t.s.o.Codec}}
	o, err := v.Tail(ctx, id, body.Bytes)
	if err != nil || !records {
		return err
	}
	return v.Verify(ctx, o)
}
