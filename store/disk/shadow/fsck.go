// Package shadow checks a store without changing a byte of it: the check works on a copy of the small files, and on segments
// whose changes are kept elsewhere.
package shadow

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/kvconn/kvconn/store/disk"
)

// Fsck says what [disk.Fsck] would find and repair in the store of dir, which must not be open. The copy lies below tempDir,
// which needs room for the journal and what is repaired, and is removed at the end. The directory's lock is shared
// meanwhile: no daemon can start there.
func Fsck(ctx context.Context, dir, tempDir string, o disk.FsckOptions) (report disk.FsckReport, err error) {
	c, err := newCopy(ctx, dir, tempDir)
	if err != nil {
		return report, fmt.Errorf("copy %s to check it: %w", dir, err)
	}
	defer func() { err = errors.Join(err, c.close()) }()
	o.Store = o.Store.WithFS(c, vfs.Default)
	report, err = disk.Fsck(ctx, c.temp, o)
	if ctx.Err() != nil {
		return report, context.Cause(ctx)
	}
	original := func(s string) string { return strings.ReplaceAll(s, c.temp, dir) }
	report.Dir = dir
	for i := range report.Dropped {
		report.Dropped[i].Reason = original(report.Dropped[i].Reason)
	}
	for _, list := range [][]string{report.Repaired, report.Failed} {
		for i := range list {
			list[i] = original(list[i])
		}
	}
	if err != nil {
		err = &renamedError{err: err, text: original(err.Error())}
	}
	return report, err
}

// renamedError is an error about the copy that names the original.
type renamedError struct {
	err  error
	text string
}

// Error implements error.
func (e *renamedError) Error() string { return e.text }

// Unwrap returns the error about the copy.
func (e *renamedError) Unwrap() error { return e.err }
