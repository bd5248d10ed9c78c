// Package objectbench measures the parts of the object tier beside the same requests with the client library
// alone, and beside the disk tier's index, against a server in memory or a bucket.
package objectbench

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/bench/slab"
	"github.com/kvconn/kvconn/store/object/bucket"
	"github.com/kvconn/kvconn/store/object/format"
)

// bench is a measurement under way.
type bench struct {
	o         Options
	server    *server // nil with a bucket that was given
	bucket    *bucket.Bucket
	raw       *raw
	bucketID  format.BucketID
	writer    format.WriterID
	written   uint64 // objects of the writer; see bench.newObject
	namespace connector.NamespaceDigest
	now       format.Seconds
	noise     []byte // payloads, a slot apart
	// memory is what records are read into, rawMemory what raw ranges are; engineMemory stands for that of an
	// engine.
	memory, rawMemory, engineMemory *slab.Slab
	res                             Result
}

// Run measures all there is.
func Run(ctx context.Context, o Options) (Result, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return Result{}, err
	}
	b := &bench{o: o, bucketID: format.NewBucketID(), writer: format.NewWriterID(), namespace: connector.NamespaceDigest{1}, now: format.SecondsOf(time.Now())}
	b.res = Result{BlockBytes: o.BlockBytes, RoundBytes: o.roundBytes(), Rounds: o.Rounds, Connections: o.Connections, Uploads: o.Uploads, LinkBytesPerS: o.LinkBytesPerS}
	err := b.open(ctx)
	if err == nil {
		err = b.measure(ctx)
	}
	return b.res, errors.Join(err, b.close(ctx))
}

// open starts the server, if one is wanted, and makes the clients.
func (b *bench) open(ctx context.Context) error {
	bo := bucket.Options{
		URL: b.o.URL, Endpoint: b.o.Endpoint, Style: b.o.Style, Region: b.o.Region, CAFile: b.o.CAFile,
		Connections: max(b.o.Connections, b.o.Uploads), Logger: slog.New(slog.DiscardHandler),
		Silence: time.Minute, // how much goes through is measured, and no patience
	}
	b.res.Server = GivenBucket
	if b.o.URL == "" {
		b.res.Server = ThisProcess
		if len(b.o.ServerCommand) > 0 {
			b.res.Server = OtherProcess
		}
		// Two rounds of objects are there for a moment, and those of raw requests; and the lists.
		const aRecord, listsBytes = 64, 256 << 20
		var err error
		b.server, err = startServer(ctx, b.o.ServerCommand, 4*b.o.roundBytes()+int64(b.o.Records)*aRecord+listsBytes, b.o.LinkBytesPerS)
		if err != nil {
			return err
		}
		bo.URL, bo.Endpoint, bo.Style, bo.Region = "s3://"+memoryBucket, b.server.url, bucket.StylePath, "us-east-1"
		bo.Keys = &bucket.Keys{ID: "bench", Secret: "bench"}
	}
	var own [8]byte
	_, _ = rand.Read(own[:])
	bo.URL = strings.TrimSuffix(bo.URL, "/") + "/kvconn-bench-" + hex.EncodeToString(own[:])
	bo.EnsureDefaults()
	var err error
	if b.bucket, err = bucket.Open(bo); err != nil {
		return err
	}
	// As a node does: without conditional writes a follower waits before it believes a new bucket.
	if err = b.bucket.Try(ctx, format.ProbeName(b.writer).String()); err != nil {
		return fmt.Errorf("try to write to %s: %w", b.bucket, err)
	}
	b.raw, err = newRaw(&bo, bo.Connections)
	return err
}

// close empties the prefix, and ends what open began.
func (b *bench) close(ctx context.Context) (err error) {
	if b.bucket != nil && b.server == nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		if err = b.empty(ctx); err != nil {
			err = fmt.Errorf("bench object: objects are left below %s: %w", b.bucket, err)
		}
	}
	if b.bucket != nil {
		b.bucket.Close()
	}
	if b.raw != nil {
		b.raw.close()
	}
	if b.server != nil {
		err = errors.Join(err, b.server.close())
	}
	return errors.Join(err, b.unmapMemory())
}

func (b *bench) empty(ctx context.Context) error {
	const page = 1000
	for {
		found, err := b.bucket.List(ctx, "", "", page)
		if err != nil || len(found) == 0 {
			return err
		}
		names := make([]string, len(found))
		for i := range found {
			names[i] = found[i].Name
		}
		if err := b.bucket.Delete(ctx, names); err != nil {
			return err
		}
	}
}

func (b *bench) measure(ctx context.Context) error {
	b.noise = make([]byte, b.o.perObject()*b.o.slotBytes())
	fillNoise(b.noise)
	if err := b.mapMemory(); err != nil {
		return err
	}
	for _, v := range []struct {
		name               string
		sealed, compressed bool
	}{{"plain", false, false}, {"sealed", true, false}, {"compressed", false, true}, {"both", true, true}} {
		b.o.Progress(v.name + " records")
		f, err := b.newForm(v.name, v.sealed, v.compressed)
		if err != nil {
			return err
		}
		if err := b.measureForm(ctx, f); err != nil {
			return fmt.Errorf("%s records: %w", v.name, err)
		}
	}
	b.res.UploadRatio, b.res.FetchRatio = b.res.Forms[0].Upload.Ratio, b.res.Forms[0].Fetch.Ratio
	b.o.Progress("joining")
	lists, err := b.putLists(ctx)
	if err != nil {
		return err
	}
	c, err := b.measureJoin(ctx, lists)
	if err != nil {
		return err
	}
	b.o.Progress("look-ups")
	return errors.Join(b.measureLookups(ctx, c), c.Close())
}

// newObject is the name of another object.
func (b *bench) newObject() format.ObjectID {
	b.written++
	return format.NewObjectID(b.writer, b.written)
}

// requests is how many requests came to the server, or went to the bucket.
func (b *bench) requests() (n uint64, err error) {
	if b.server != nil {
		return b.server.requests()
	}
	for _, sent := range b.bucket.Stats().Requests {
		n += sent
	}
	return n, nil
}
