package tiertest

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kvconn/kvconn/internal/testkit/storetest"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk"
	"github.com/kvconn/kvconn/store/record"
	"github.com/kvconn/kvconn/store/seal"
)

func TestMemoryIsATier(t *testing.T) {
	Run(t, func(*testing.T) *Subject { return memory() })
}

func memory() *Subject {
	const records, events = 100, 10_000
	m := NewMemory(Options{MaxRecords: records, KeepEvents: events})
	return &Subject{Tier: m, Capacity: records + 1, Flip: m.Flip, Stall: m.Stall, KeptEvents: events}
}

func TestDiskIsATier(t *testing.T) { Run(t, openDisk) }

func TestSealedDiskIsATier(t *testing.T) {
	ring, err := seal.New(seal.Key([]byte("this is a key with 32 characters")))
	if err != nil {
		t.Fatal(err)
	}
	Run(t, func(t *testing.T) *Subject { return openDiskWith(t, ring) })
}

func TestChainIsATier(t *testing.T) {
	Run(t, func(t *testing.T) *Subject {
		s := openDisk(t)
		s.Tier = store.NewChain(s.Tier, NewMemory(Options{Name: "slow", Latency: time.Millisecond}))
		return s
	})
}

// What a slower tier delivers in place of a damaged record, or of one of another prefix, is written
// again at once: the one that was there does not pass for it.
func TestDamageOnDiskIsMendedFromASlowerTier(t *testing.T) {
	s := openDisk(t)
	flip, slow := s.Flip, NewMemory(Options{Name: "slow"})
	chain := store.NewChain(s.Tier, slow)
	s.Tier = chain
	f := &fixture{T: t, Subject: s}
	f.ns = f.open("m")
	records := f.chain(1, 3)
	onDisk := slices.Clone(records)
	onDisk[2].Proof[9]++
	f.mustWrite(onDisk...)
	s.Tier = slow
	f.mustWrite(records...)
	s.Tier = chain
	flip(records[0].ID)
	flip(records[1].ID)
	var mended sync.WaitGroup
	ops := make([]*store.ReadOp, len(records))
	for i, r := range records {
		ops[i] = &store.ReadOp{Record: r, Payload: store.AlignedBuffer(PayloadBytes)}
	}
	f.Read(t.Context(), ops, func(op *store.ReadOp) {
		if op.Err != nil || op.From != "slow" || !op.Promote {
			t.Errorf("%v from %q, promote %v", op.Err, op.From, op.Promote)
			return
		}
		mended.Add(1)
		w := &store.WriteOp{Record: op.Record, Scope: op.Scope, Payload: op.Payload}
		if n, err := f.Write([]*store.WriteOp{w}, func(*store.WriteOp) { mended.Done() }); n == 0 {
			t.Error(err)
			mended.Done()
		}
	})
	mended.Wait()
	for i, op := range f.read(t.Context(), records...) {
		if op.Err != nil || op.From != "disk" {
			t.Errorf("record %d: %v from %q", i, op.Err, op.From)
		}
	}
	if err := chain.Close(); err != nil {
		t.Error(err)
	}
}

func TestChainOfOneIsATier(t *testing.T) {
	Run(t, func(*testing.T) *Subject {
		m := memory()
		m.Tier = store.NewChain(m.Tier)
		return m
	})
}

func openDisk(t *testing.T) *Subject { return openDiskWith(t, nil) }

func openDiskWith(t *testing.T, ring *seal.Ring) *Subject {
	const maxBytes = disk.MinMaxBytes + 4<<20
	d, dir := new(storetest.Disk), t.TempDir()
	s, err := disk.Open(t.Context(), d.Under(disk.Options{
		Dir: dir, MaxBytes: maxBytes, MinFreeBytes: -1, SegmentBytes: 1 << 20, BarrierInterval: 5 * time.Millisecond,
		Ring: ring, Logger: slog.New(slog.DiscardHandler),
	}))
	if err != nil {
		t.Fatal(err)
	}
	return &Subject{
		Tier: s, Capacity: maxBytes/PayloadBytes + 1,
		Flip: func(id store.RecordID) {
			if err := flip(dir, id); err != nil {
				t.Fatal(err)
			}
		},
		Stall: func() func() {
			resume := make(chan struct{})
			d.Hook(func(op storetest.Op) error {
				if op.Kind == storetest.Read {
					<-resume
				}
				return nil
			})
			return sync.OnceFunc(func() {
				d.Hook(nil)
				close(resume)
			})
		},
	}
}

// flip flips a bit of a record's payload in the files of a store.
func flip(dir string, id store.RecordID) error {
	found := false
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || found {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for at := 0; at+record.HeaderBytes+PayloadBytes <= len(b); at += store.BufferAlign {
			var r record.Header
			header := b[at : at+record.HeaderBytes]
			if !bytes.Contains(header, id.Key[:]) || r.Decode(header) != nil || r.Key != id.Key || r.Shard != id.Shard || r.Namespace != id.Namespace {
				continue
			}
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				return err
			}
			offset := at + record.HeaderBytes + 1000
			_, err = f.WriteAt([]byte{b[offset] ^ 4}, int64(offset))
			found = err == nil
			return errors.Join(err, f.Sync(), f.Close())
		}
		return nil
	})
	if err == nil && !found {
		err = errors.New("the record is in no file")
	}
	return err
}
