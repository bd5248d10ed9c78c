package bucket

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/minio/minio-go/v7"
)

// Get implements [Client].
func (b *Bucket) Get(ctx context.Context, name string, from, bytes int64) (*Body, error) {
	out := &Body{Meta: Meta{Name: name}}
	in := &object{b: b, name: name, ctx: ctx}
	a, err := b.run(ctx, Get, name, func(a *attempt) error {
		options, err := ranged(from, bytes)
		if err != nil {
			return err
		}
		rc, info, head, err := b.core.GetObject(a.ctx, b.name, b.full(name), options)
		if err != nil {
			return err
		}
		status, _ := a.head()
		out.Length, out.Bytes, err = delivered(status, head, from, bytes)
		if err != nil {
			_ = rc.Close()
			return err
		}
		out.ETag, out.Modified, out.Now = info.ETag, info.LastModified, a.now()
		in.body, in.left = rc, out.Length
		return nil
	})
	if err != nil {
		return nil, err
	}
	in.a = a
	out.ReadCloser = in
	return out, nil
}

// ranged asks for a range, with 0 bytes for all that follows an offset.
func ranged(from, bytes int64) (options minio.GetObjectOptions, err error) {
	switch {
	case from < 0 || bytes < 0:
		return options, fmt.Errorf("%w: %d bytes from %d", errCaller, bytes, from)
	case bytes > 0:
		err = options.SetRange(from, from+bytes-1)
	case from > 0:
		err = options.SetRange(from, 0)
	}
	return options, err
}

// delivered says how long the body of an answer is, and the object, -1 if that is not said. It is an
// error if the body is not the range that was asked for: some servers, and proxies, don't know ranges.
func delivered(status int, head http.Header, from, bytes int64) (length, whole int64, err error) {
	length, err = strconv.ParseInt(head.Get("Content-Length"), 10, 64)
	if err != nil || length < 0 {
		return 0, 0, fmt.Errorf("%w: an answer without its length", errDamaged)
	}
	if status != http.StatusPartialContent {
		if from > 0 || bytes > 0 && length > bytes {
			return 0, 0, fmt.Errorf("%w: the whole object instead of a range", errDamaged)
		}
		return length, length, nil
	}
	first, last, whole, ok := contentRange(head.Get("Content-Range"))
	end := from + bytes - 1
	if bytes == 0 || whole >= 0 && end >= whole {
		end = whole - 1
	}
	if !ok || first != from || last-first+1 != length || whole >= 0 && last != end || whole < 0 && bytes > 0 && last > end {
		return 0, 0, fmt.Errorf("%w: bytes %d to %d of %d instead of %d from %d", errDamaged, first, last, whole, bytes, from)
	}
	return length, whole, nil
}

// contentRange reads bytes FIRST-LAST/WHOLE, where WHOLE may be *, which is -1.
func contentRange(text string) (first, last, whole int64, ok bool) {
	text, found := strings.CutPrefix(text, "bytes ")
	part, total, cut := strings.Cut(text, "/")
	a, b, dash := strings.Cut(part, "-")
	first, errFirst := strconv.ParseInt(a, 10, 64)
	last, errLast := strconv.ParseInt(b, 10, 64)
	ok = found && cut && dash && errFirst == nil && errLast == nil && 0 <= first && first <= last
	if total == "*" {
		return first, last, -1, ok
	}
	whole, errWhole := strconv.ParseInt(total, 10, 64)
	return first, last, whole, ok && errWhole == nil && last < whole
}

// object is the body of a Get. It is for one goroutine.
type object struct {
	b      *Bucket
	a      *attempt
	name   string
	ctx    context.Context // the caller's: whether it has ended decides what an error is
	body   io.ReadCloser
	left   int64
	failed error
}

// Read implements [io.Reader].
func (o *object) Read(p []byte) (int, error) {
	if o.failed != nil {
		return 0, o.failed
	}
	n, err := o.body.Read(p)
	o.left -= int64(n)
	switch {
	case o.left < 0:
		n += int(o.left)
		err = fmt.Errorf("%w: a body that is too long", errDamaged)
	case errors.Is(err, io.EOF) && o.left > 0:
		err = io.ErrUnexpectedEOF
	}
	switch {
	case err == nil:
		return n, nil
	case errors.Is(err, io.EOF):
		o.a.end(nil)
		o.failed = io.EOF
	default:
		e := o.b.classify(o.ctx, o.a, o.name, err)
		e.Attempts = 1
		o.a.end(e)
		o.failed = e
	}
	return n, o.failed
}

// Close implements [io.Closer]. A body that is closed before its end has not failed.
func (o *object) Close() error {
	err := o.body.Close()
	o.a.end(nil)
	if o.failed == nil {
		o.failed = fmt.Errorf("get %s: the body is closed", o.name)
	}
	return err
}
