package stopped

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/archive"
	"github.com/kvconn/kvconn/store/disk"
)

// Export writes an archive of namespaces, given by their digests. progress, if not nil, is told how many records were read.
func Export(ctx context.Context, s *disk.Store, digests []string, w io.Writer, progress func(done, total int64)) (archive.Exported, error) {
	src := &counted{Store: s, progress: progress}
	wanted := make(map[string]bool, len(digests))
	for _, d := range digests {
		wanted[d] = true
	}
	var manifests []*connector.Manifest
	for _, c := range s.Contents() {
		if !wanted[c.Digest.String()] {
			continue
		}
		m, err := connector.ParseManifest(c.Manifest)
		if err != nil {
			return archive.Exported{}, fmt.Errorf("the description of namespace %v is lost; it is written again when an engine of that configuration connects to the daemon", c.Digest)
		}
		manifests, src.total = append(manifests, m), src.total+c.Records
	}
	if len(manifests) == 0 {
		return archive.Exported{}, errors.New("no record is of that model or namespace")
	}
	return archive.Export(ctx, src, manifests, w)
}

// counted is a store that says how many records were read of it.
type counted struct {
	*disk.Store
	progress    func(done, total int64)
	done, total int64
}

// Export implements [store.Exporter].
func (c *counted) Export(ctx context.Context, ops []*store.ReadOp, done func(*store.ReadOp)) {
	c.Store.Export(ctx, ops, done)
	if c.done += int64(len(ops)); c.progress != nil {
		c.progress(c.done, c.total)
	}
}

// Import puts the records of an archive into a store, and makes them durable. If ctx ends before that, this holds for those that were read.
// progress, if not nil, is told how many bytes of the archive were read.
func Import(ctx context.Context, s *disk.Store, r io.Reader, progress func(read int64)) (archive.Imported, error) {
	pr, pw := io.Pipe() // a reader of a terminal or pipe does not know ctx
	defer context.AfterFunc(ctx, func() { _ = pw.CloseWithError(context.Cause(ctx)) })()
	go func() {
		_, err := io.Copy(pw, r)
		_ = pw.CloseWithError(err)
	}()
	done, err := archive.Import(ctx, s, &countedReader{r: pr, progress: progress})
	_ = pr.Close()
	return done, errors.Join(err, s.Sync(context.WithoutCancel(ctx)))
}

// countedReader says how much was read.
type countedReader struct {
	r        io.Reader
	progress func(read int64)
	read     int64
}

func (c *countedReader) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	if c.read += int64(n); c.progress != nil {
		c.progress(c.read)
	}
	return n, err
}
