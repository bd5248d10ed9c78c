package objectbench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/bench/storebench"
	"github.com/kvconn/kvconn/store/object/bucket"
	"github.com/kvconn/kvconn/store/object/catalog"
	"github.com/kvconn/kvconn/store/object/follow"
	"github.com/kvconn/kvconn/store/object/format"
)

const (
	// listedRecords is how many records an object of the lists has: 32 MiB of them.
	listedRecords = 16
	listedPayload = 2 << 20
	// partRecords is when the steward folds the log into a part.
	partRecords  = 256 << 10
	lookupRounds = 200
)

// lists is what a bucket has for a node that joins.
type lists struct {
	parts   int
	records int
	bytes   int64
}

// putLists puts the files format and head, and parts with the records: chains of chainBlocks. None of their
// objects is there.
func (b *bench) putLists(ctx context.Context) (l lists, err error) {
	note := format.NewNote(b.bucketID, b.now, nil)
	data, err := note.Encode()
	if err == nil {
		err = b.putFile(ctx, format.FormatFile, data)
	}
	head := format.Head{Bucket: b.bucketID, Generation: 1, IntervalMS: 1000}
	for at := 0; at < b.o.Records && err == nil; at += partRecords {
		head.Last++
		part := b.part(at, min(partRecords, b.o.Records-at), head.Last)
		if data, err = part.Encode(nil); err != nil {
			break
		}
		records := min(partRecords, b.o.Records-at)
		head.Parts = append(head.Parts, format.Part{Name: part.Name, Bytes: int64(len(data)), Sum: format.SumOf(data), Records: uint64(records)})
		l.parts, l.records, l.bytes = l.parts+1, l.records+records, l.bytes+int64(len(data))
		err = b.putFile(ctx, part.Name.String(), data)
	}
	if err != nil {
		return l, err
	}
	if data, err = head.Encode(); err != nil {
		return l, err
	}
	return l, b.putFile(ctx, format.HeadFile, data)
}

func (b *bench) putFile(ctx context.Context, name string, data []byte) error {
	_, err := b.bucket.Put(ctx, name, bytes.NewReader(data), int64(len(data)), bucket.Condition{})
	return err
}

// part lists records from the one with a number on.
func (b *bench) part(from, records int, n uint64) *format.List {
	l := &format.List{Name: format.PartName(n, n, b.newObject()), Bucket: b.bucketID, Writer: b.writer}
	for at := from; at < from+records; {
		chain, block := at/chainBlocks, at%chainBlocks
		count := min(listedRecords, chainBlocks-block, from+records-at)
		slot := format.SlotBytes(listedPayload)
		o := format.Object{
			ID: b.newObject(), Namespace: b.namespace, PayloadBytes: listedPayload, Created: b.now, Used: b.now,
			Bytes: uint32(int64(count)*slot + format.Unit), // footer and trailer take less than a unit
			Runs:  []format.Run{{Depth: uint16(block)}}, Records: make([]format.Record, count),
		}
		if block > 0 {
			o.Runs[0].Parent = storebench.Key(chain, block-1)
		}
		for i := range o.Records {
			o.Records[i] = format.Record{Key: storebench.Key(chain, block+i), Start: uint16(int64(i) * slot / format.Unit)}
		}
		l.Objects = append(l.Objects, o)
		at += count
	}
	return l
}

// measureJoin has nodes read the lists. It returns the catalog of the last.
func (b *bench) measureJoin(ctx context.Context, l lists) (c *catalog.Catalog, err error) {
	var seconds, cpu []float64
	for range b.o.Rounds {
		if c != nil {
			if err := c.Close(); err != nil {
				return nil, err
			}
		}
		if c, err = b.newCatalog(); err != nil {
			return nil, err
		}
		took, spent, err := b.join(ctx, c, l)
		if err != nil {
			return nil, errors.Join(err, c.Close())
		}
		seconds, cpu = append(seconds, took), append(cpu, spent)
	}
	s := c.Stats()
	b.res.JoinSeconds, b.res.JoinCPUSeconds, b.res.Parts = storebench.Median(seconds), storebench.Median(cpu), l.parts
	b.res.BytesPerRecord, b.res.ListBytesPerRecord = float64(s.IndexBytes)/float64(s.Records), float64(l.bytes)/float64(l.records)
	return c, nil
}

// join follows the bucket to the end of its log, once.
func (b *bench) join(ctx context.Context, c *catalog.Catalog, l lists) (seconds, cpu float64, err error) {
	f, err := follow.New(follow.Options{Client: b.bucket, Catalog: c, ReadOnly: true, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return 0, 0, err
	}
	runtime.GC()
	before, err := b.requests()
	if err != nil {
		return 0, 0, err
	}
	m := storebench.StartMeter()
	if err := f.CatchUp(ctx); err != nil {
		return 0, 0, fmt.Errorf("join: %w", err)
	}
	rate, cpu := m.Stop(1 << 30) // processor seconds a GiB of one GiB
	after, err := b.requests()
	if err != nil {
		return 0, 0, err
	}
	b.res.JoinRequests = after - before
	if s := c.Stats(); s.Records != int64(l.records) {
		return 0, 0, fmt.Errorf("join: %d of %d records are on offer, %+v", s.Records, l.records, f.Stats())
	}
	return (1 << 30) / rate, cpu, nil
}

// measureLookups looks chains up in a catalog and in the index of the disk tier, in turn.
func (b *bench) measureLookups(ctx context.Context, c *catalog.Catalog) error {
	table, err := storebench.NewTable(ctx, b.o.Records, chainBlocks)
	if err != nil {
		return err
	}
	defer table.Close()
	keys, shards := make([]connector.Key, chainBlocks), []connector.Shard{0}
	var times, diskTimes, ratios []float64
	var pins catalog.Pins
	runtime.GC()
	before, err := b.requests()
	if err != nil {
		return err
	}
	for round := range lookupRounds {
		chain := round * 7919 % (b.o.Records / chainBlocks)
		for i := range keys {
			keys[i] = storebench.Key(chain, i)
		}
		began := time.Now()
		found := c.Prefix(b.namespace, shards, keys, &pins)
		c.Unpin(&pins)
		took := time.Since(began).Seconds()
		began = time.Now()
		onDisk := table.Lookup(keys)
		diskTook := time.Since(began).Seconds()
		if found != len(keys) || onDisk != len(keys) {
			return fmt.Errorf("look-up: %d of the catalog, %d of the disk's index, of %d keys", found, onDisk, len(keys))
		}
		times, diskTimes, ratios = append(times, took), append(diskTimes, diskTook), append(ratios, took/diskTook)
	}
	after, err := b.requests()
	if err != nil {
		return err
	}
	slices.Sort(times)
	slices.Sort(diskTimes)
	p99 := lookupRounds * 99 / 100
	b.res.LookupResult = LookupResult{
		Records: b.o.Records, Chain: chainBlocks, LookupRequests: after - before, LookupRatio: storebench.Median(ratios),
		LookupSeconds: storebench.Median(times), LookupP99Seconds: times[p99],
		DiskLookupSeconds: storebench.Median(diskTimes), DiskLookupP99Seconds: diskTimes[p99],
	}
	return nil
}
