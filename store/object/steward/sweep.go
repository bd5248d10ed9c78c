package steward

import (
	"context"
	"time"

	"github.com/kvconn/kvconn/store/object/bucket"
	"github.com/kvconn/kvconn/store/object/format"
)

const (
	// keepFor is how long lists are kept that a part has replaced: nodes that read an older head may be reading them.
	keepFor = time.Hour
	// sweepEvery is how often that is looked for, beside after each fold.
	sweepEvery = time.Hour
)

// sweep deletes parts and objects of the log that newer parts replaced an hour ago, parts that nothing names, and
// trials of conditional writes. All times are the bucket's.
func (t *term) sweep(ctx context.Context) error {
	if time.Since(t.swept) < sweepEvery {
		return nil
	}
	if err := t.guard(); err != nil {
		return err
	}
	parts, err := t.listAll(ctx, format.PartPrefix)
	if err != nil {
		return err
	}
	old, covered := t.oldParts(parts)
	// An hour after a part was written everybody has read it, or the log before it.
	if covered > 0 {
		logs, err := t.s.o.Client.List(ctx, format.LogPrefix, "", maxFold)
		if err != nil {
			return err
		}
		for _, m := range logs {
			if name, err := format.ParseName(m.Name); err == nil && name.Kind == format.KindLog && name.Number <= covered {
				old = append(old, m.Name)
			}
		}
	}
	trials, err := t.s.o.Client.List(ctx, format.ProbePrefix, "", maxFold)
	if err != nil {
		return err
	}
	for _, m := range trials {
		if name, err := format.ParseName(m.Name); err == nil && name.Kind == format.KindProbe && aged(m) {
			old = append(old, m.Name)
		}
	}
	if err := t.guard(); err != nil {
		return err
	}
	if err := t.s.o.Client.Delete(ctx, old); err != nil {
		return err
	}
	t.swept = time.Now()
	return nil
}

// aged reports whether an object has been there for an hour.
func aged(m bucket.Meta) bool { return m.Now.Sub(m.Modified) > keepFor }

// oldParts are the parts that may go. covered is the last object of the log that may.
func (t *term) oldParts(metas []bucket.Meta) (old []string, covered uint64) {
	named := make(map[string]format.Name, len(t.head.Parts))
	for _, p := range t.head.Parts {
		named[p.Name.String()] = p.Name
	}
	var settled []format.Name // parts of the head that are an hour old
	for _, m := range metas {
		if name, ok := named[m.Name]; ok && aged(m) {
			settled = append(settled, name)
			covered = max(covered, name.Number)
		}
	}
	within := func(n format.Name) bool {
		for _, p := range settled {
			if p.First <= n.First && n.Number <= p.Number {
				return true
			}
		}
		return false
	}
	for _, m := range metas {
		name, err := format.ParseName(m.Name)
		if err != nil || name.Kind != format.KindPart || !aged(m) {
			continue
		}
		// Beside those that were merged: what a steward left that died before it put the head.
		if _, ok := named[m.Name]; !ok && (within(name) || name.Number > t.head.Last || !t.overlaps(name)) {
			old = append(old, m.Name)
		}
	}
	return old, covered
}

// overlaps reports whether a part of the head has some of the log that a part has.
func (t *term) overlaps(n format.Name) bool {
	for _, p := range t.head.Parts {
		if p.Name.First <= n.Number && n.First <= p.Name.Number {
			return true
		}
	}
	return false
}
