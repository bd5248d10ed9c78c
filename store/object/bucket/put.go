package bucket

import (
	"bytes"
	"context"
	"fmt"
	"io"

	"github.com/minio/minio-go/v7"
)

// maxObjectBytes is what one request can write: S3's bound.
const maxObjectBytes = 5 << 30

// Put implements [Client].
func (b *Bucket) Put(ctx context.Context, name string, data io.ReadSeeker, size int64, c Condition) (Meta, error) {
	return b.put(ctx, name, data, size, c, b.Conditional())
}

// put writes an object; with send it sends the condition.
func (b *Bucket) put(ctx context.Context, name string, data io.ReadSeeker, size int64, c Condition, send bool) (Meta, error) {
	options := minio.PutObjectOptions{
		// The payload is verified by what is in it. Its SHA-256 would cost 0.8 CPU seconds a GiB.
		DisableContentSha256: true,
	}
	switch {
	case send && c.Absent:
		options.SetMatchETagExcept("*")
	case send && c.ETag != "":
		options.SetMatchETag(c.ETag)
	}
	meta, unsure := Meta{Name: name, Bytes: size}, false
	a, err := b.run(ctx, Put, name, func(a *attempt) error {
		if size < 0 || size > maxObjectBytes {
			return fmt.Errorf("%w: an object of %d bytes", errCaller, size)
		}
		if unsure && send && c != (Condition{}) {
			// Servers refuse before they have read the whole body, and the answer is lost when they
			// close the connection: more attempts would end like the last.
			switch found, whose, err := b.compare(ctx, name, data, size); {
			case err != nil:
			case whose == ours:
				meta = found
				return nil
			case c.Absent && whose == theirs, c.ETag != "" && found.ETag != c.ETag:
				return &Error{Kind: Put, Name: name, Cause: ErrCondition, Text: "another object has the name, or none"}
			}
		}
		if _, err := data.Seek(0, io.SeekStart); err != nil {
			return fmt.Errorf("%w: %w", errCaller, err)
		}
		body := &upload{a: a, data: io.LimitReader(data, size)}
		defer func() {
			unsure = unsure || a.unsure()
			a.cancel(errDone)
			body.end()
		}()
		info, err := b.core.PutObject(a.ctx, b.name, b.full(name), body, size, "", "", options)
		meta.ETag, meta.Now, meta.Modified = info.ETag, a.now(), a.now()
		return err
	})
	if err == nil {
		a.end(nil)
		return meta, nil
	}
	if unsure && is(err, ErrCondition) {
		// An attempt whose answer was lost may have been carried out: then what is there is ours.
		if found, whose, err := b.compare(ctx, name, data, size); err == nil && whose == ours {
			return found, nil
		}
	}
	return Meta{}, err
}

// owner says whose bytes an object has.
type owner int

const (
	nobodys owner = iota // there is no object
	ours
	theirs
)

// compare compares an object with data.
func (b *Bucket) compare(ctx context.Context, name string, data io.ReadSeeker, size int64) (Meta, owner, error) {
	if _, err := data.Seek(0, io.SeekStart); err != nil {
		return Meta{}, nobodys, err
	}
	body, err := b.Get(ctx, name, 0, 0)
	if is(err, ErrMissing) {
		return Meta{}, nobodys, nil
	}
	if err != nil {
		return Meta{}, nobodys, err
	}
	defer body.Close()
	if body.Length != size {
		return body.Meta, theirs, nil
	}
	there, here := make([]byte, chunkBytes), make([]byte, chunkBytes)
	for left := size; left > 0; {
		n := min(left, chunkBytes)
		if _, err := io.ReadFull(body, there[:n]); err != nil {
			return Meta{}, nobodys, err
		}
		if _, err := io.ReadFull(data, here[:n]); err != nil {
			return Meta{}, nobodys, err
		}
		if !bytes.Equal(there[:n], here[:n]) {
			return body.Meta, theirs, nil
		}
		left -= n
	}
	return body.Meta, ours, nil
}

// Try finds out whether the bucket can be written, and whether its server keeps conditions of a Put,
// as [Client.Conditional] then says. It writes an object of this name, which has to be nobody else's,
// and deletes it: five requests. It cannot find a race, and nothing in the bucket depends on one.
func (b *Bucket) Try(ctx context.Context, name string) error {
	put := func(text string, c Condition) (Meta, error) {
		return b.put(ctx, name, bytes.NewReader([]byte(text)), int64(len(text)), c, true)
	}
	b.conditional.Store(false)
	first, err := put("first", Condition{Absent: true})
	knows := !is(err, ErrRefused)        // the header
	if !knows || is(err, ErrCondition) { // or an earlier trial ended early
		first, err = put("first", Condition{})
	}
	if err != nil {
		return err
	}
	// Two conditions that do not hold, and one that does.
	if knows {
		for _, c := range []Condition{{Absent: true}, {ETag: "00000000000000000000000000000000"}} {
			_, err := put("other", c)
			if err != nil && !is(err, ErrCondition, ErrRefused) {
				return err
			}
			knows = knows && is(err, ErrCondition)
		}
	}
	if knows {
		if _, err := put("last", Condition{ETag: first.ETag}); err != nil {
			return err
		}
	}
	b.conditional.Store(knows)
	return b.Delete(ctx, []string{name})
}
