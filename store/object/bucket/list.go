package bucket

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/minio/minio-go/v7"
)

// pageNames is how many names a page of a list has, and a deletion of many: S3's bounds.
const pageNames = 1000

// List implements [Client].
func (b *Bucket) List(ctx context.Context, prefix, after string, most int) ([]Meta, error) {
	var list []Meta
	if most <= 0 {
		return nil, nil
	}
	owners := false
	a, err := b.run(ctx, List, prefix, func(a *attempt) error {
		options := minio.ListObjectsOptions{Prefix: b.full(prefix), Recursive: true, MaxKeys: min(most-len(list), pageNames), FetchOwner: &owners}
		// An attempt goes on where the one before it was.
		switch {
		case len(list) > 0:
			options.StartAfter = b.full(list[len(list)-1].Name)
		case after != "":
			options.StartAfter = b.full(after)
		}
		for o := range b.core.ListObjectsIter(a.ctx, b.name, options) {
			if o.Err != nil {
				return o.Err
			}
			name, ours := strings.CutPrefix(o.Key, b.prefix)
			if !ours || name == "" {
				continue
			}
			list = append(list, Meta{Name: name, ETag: o.ETag, Bytes: o.Size, Modified: o.LastModified, Now: a.now()})
			if len(list) == most {
				return nil
			}
		}
		return a.ctx.Err() // the iterator ends with it, and does not say so
	})
	if err == nil {
		a.end(nil)
	}
	byName := func(x, y Meta) int { return cmp.Compare(x.Name, y.Name) }
	if !slices.IsSortedFunc(list, byName) { // S3 Express does not sort
		slices.SortFunc(list, byName)
	}
	return list, err
}

// Delete implements [Client].
func (b *Bucket) Delete(ctx context.Context, names []string) error {
	for some := range slices.Chunk(names, pageNames) {
		if len(some) > 1 && !b.single.Load() {
			err := b.deleteMany(ctx, some)
			if err == nil {
				continue
			}
			if !is(err, ErrRefused) {
				return err
			}
			b.single.Store(true) // Google's does not know this request
		}
		for _, name := range some {
			if err := b.deleteOne(ctx, name); err != nil {
				return err
			}
		}
	}
	return nil
}

// deleteMany deletes up to 1,000 objects with one request.
func (b *Bucket) deleteMany(ctx context.Context, names []string) error {
	a, err := b.run(ctx, Delete, strconv.Itoa(len(names))+" objects", func(a *attempt) error {
		objects := func(yield func(minio.ObjectInfo) bool) {
			for _, name := range names {
				if !yield(minio.ObjectInfo{Key: b.full(name)}) {
					return
				}
			}
		}
		results, err := b.core.RemoveObjectsWithIter(a.ctx, b.name, objects, minio.RemoveObjectsOptions{})
		if err != nil {
			return err
		}
		done := 0
		for r := range results {
			if r.Err != nil && minio.ToErrorResponse(r.Err).Code != minio.NoSuchKey {
				return r.Err
			}
			done++
		}
		if err := a.ctx.Err(); err != nil {
			return err // the iterator ends with it, and does not say so
		}
		if done < len(names) {
			return fmt.Errorf("%w: %d of %d deletions were answered", errPartly, done, len(names))
		}
		return nil
	})
	if err == nil {
		a.end(nil)
	}
	return err
}

// errPartly is that of an answer that does not speak of all objects: it is asked again.
var errPartly = errors.New("the answer is not whole")

func (b *Bucket) deleteOne(ctx context.Context, name string) error {
	a, err := b.run(ctx, Delete, name, func(a *attempt) error {
		return b.core.RemoveObject(a.ctx, b.name, b.full(name), minio.RemoveObjectOptions{})
	})
	if err == nil {
		a.end(nil)
	}
	if is(err, ErrMissing) {
		return nil
	}
	return err
}
