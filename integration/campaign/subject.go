package campaign

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/fault"
	"github.com/kvconn/kvconn/internal/testkit/faultfs"
	"github.com/kvconn/kvconn/internal/testkit/manifests"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk"
)

// Limit bounds every call of a store: one that takes longer hangs.
const Limit = 60 * time.Second

// DefaultCap is the cap of the stores: small, so that there is eviction.
const DefaultCap = 16 << 20

// ErrHang says that a call of the store did not return within [Limit].
var ErrHang = errors.New("the store hangs")

// ErrWrongBytes says that a read succeeded but returned bytes other than those saved.
var ErrWrongBytes = errors.New("wrong bytes")

// subject is an open store, and what is known about it.
type subject struct {
	*disk.Store
	dir        string
	limits     limits
	namespaces [allSizes]connector.NamespaceDigest
	contents   *contents
	log        *warnings
}

// limits bound the bytes of a store.
type limits struct {
	cap int64
	// disk is the size of the file system, which is the store's alone; 0 if it is as large as it
	// may be. A quarter of it must stay free.
	disk int64
}

// minFreePart of a small file system must stay free.
const minFreePart = 4

// check says what is wrong if that many bytes are on the disk.
func (l limits) check(bytes int64) error {
	switch {
	case bytes > l.cap:
		return fmt.Errorf("%d bytes on disk, the cap is %d", bytes, l.cap)
	case l.disk > 0 && l.disk-bytes < l.disk/minFreePart:
		return fmt.Errorf("%d bytes on a disk of %d: %d are free, min_free is %d", bytes, l.disk, l.disk-bytes, l.disk/minFreePart)
	}
	return nil
}

// storeOptions have short waits, so that a trial is short too.
func storeOptions(dir string, limit int64, log *warnings) disk.Options {
	return disk.Options{
		Dir: dir, MaxBytes: limit, SegmentBytes: 1 << 20, BarrierInterval: 5 * time.Millisecond,
		ReadTimeout: 20 * time.Second, SlotWait: 200 * time.Millisecond,
		Writers: 4, Logger: slog.New(log),
	}
}

// open opens a store and its two namespaces.
func open(dir string, l limits, i *fault.Injector, c *contents) (*subject, error) {
	log := new(warnings)
	s := &subject{dir: dir, limits: l, contents: c, log: log}
	err := bounded("open", func() error {
		ctx, cancel := context.WithTimeout(context.Background(), Limit)
		defer cancel()
		opened, err := disk.Open(ctx, faultfs.UnderOn(l.disk, storeOptions(dir, l.cap, log), i))
		s.Store = opened
		return err
	})
	log.opened()
	if err != nil {
		return nil, err
	}
	return s, nil
}

// openNamespaces must succeed before anything is saved or read.
func (s *subject) openNamespaces() error {
	for z := range allSizes {
		err := bounded("open namespace", func() (err error) {
			s.namespaces[z], err = s.OpenNamespace(manifests.Model(z.String()))
			return err
		})
		if err != nil {
			return fmt.Errorf("open namespace %v: %w", z, err)
		}
	}
	return nil
}

// bounded runs a call that must return.
func bounded(what string, call func() error) error {
	done := make(chan error, 1)
	go func() { done <- call() }()
	timer := time.NewTimer(Limit)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		stacks := make([]byte, 1<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		return fmt.Errorf("%s: %w\n%s", what, ErrHang, stacks)
	}
}

func (s *subject) id(r Record) store.RecordID {
	return store.RecordID{Namespace: s.namespaces[r.Size], Key: r.key()}
}

// save writes records, each as soon as the store takes it, and returns the error of each.
func (s *subject) save(records []Record) ([]error, error) {
	errs := make([]error, len(records))
	err := bounded("save", func() error {
		var wait sync.WaitGroup
		for i, r := range records {
			payload := r.payload()
			op := &store.WriteOp{Record: store.Record{ID: s.id(r), Parent: r.parent(), Proof: r.proof()}, Payload: payload}
			wait.Add(1)
			for deadline := time.Now().Add(Limit / 2); ; time.Sleep(time.Millisecond) {
				n, err := s.Write([]*store.WriteOp{op}, func(op *store.WriteOp) { errs[i] = op.Err; wait.Done() })
				if n == 1 {
					break
				}
				if !errors.Is(err, store.ErrBusy) || time.Now().After(deadline) {
					errs[i] = err
					wait.Done()
					break
				}
			}
		}
		wait.Wait()
		return nil
	})
	return errs, err
}

// saveAgain saves records, and again those for which no slot was freed in time: on a machine with
// other work a barrier may take longer than a save waits. It returns the last error of each.
func (s *subject) saveAgain(records []Record) ([]error, error) {
	errs, err := s.save(records)
	for deadline := time.Now().Add(Limit / 2); err == nil && time.Now().Before(deadline); {
		var busy []Record
		var at []int
		for i, e := range errs {
			if errors.Is(e, store.ErrBusy) {
				busy, at = append(busy, records[i]), append(at, i)
			}
		}
		if len(busy) == 0 {
			break
		}
		var again []error
		again, err = s.save(busy)
		for i, e := range again {
			errs[at[i]] = e
		}
	}
	return errs, err
}

// saveAll saves records, again where it has to, and returns the first error that is left.
func (s *subject) saveAll(records []Record) error {
	errs, err := s.saveAgain(records)
	return errors.Join(err, first(errs))
}

// readBatch is how many records are read by one call.
const readBatch = 64

// read reads records and returns the error of each. Bytes that are wrong are an error of the
// whole.
func (s *subject) read(records []Record) ([]error, error) {
	errs := make([]error, len(records))
	for from := 0; from < len(records); from += readBatch {
		part := records[from:min(from+readBatch, len(records))]
		ops := make([]*store.ReadOp, len(part))
		for i, r := range part {
			ops[i] = &store.ReadOp{Record: store.Record{ID: s.id(r), Parent: r.parent(), Proof: r.proof()}, Payload: store.AlignedBuffer(r.Size.Bytes())}
		}
		err := bounded("read", func() error {
			s.Read(context.Background(), ops, func(*store.ReadOp) {})
			return nil
		})
		if err != nil {
			return errs, err
		}
		for i, op := range ops {
			errs[from+i] = op.Err
			if op.Err == nil && !bytes.Equal(op.Payload, s.contents.get(part[i])) {
				return errs, fmt.Errorf("record %+v: %w", part[i], ErrWrongBytes)
			}
		}
	}
	return errs, nil
}

// has reports whether the store claims to have a record.
func (s *subject) has(r Record) bool {
	id, at := s.id(r), []bool{false}
	s.Present(id.Namespace, id.Shard, []connector.Key{id.Key}, at)
	return at[0]
}

// present are the records that the store claims to have.
func (s *subject) present(records []Record) []Record {
	var out []Record
	for _, r := range records {
		if s.has(r) {
			out = append(out, r)
		}
	}
	return out
}

// first is the first error of a list.
func first(errs []error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// rebuilt waits until an index that is rebuilt beside look-ups is complete, and segments that
// could not be opened at the start are there.
func (s *subject) rebuilt() error {
	return bounded("rebuild", func() error {
		for st := s.Stats(); st.Rebuild.Running || st.AwaitedSegments > 0; st = s.Stats() {
			time.Sleep(5 * time.Millisecond)
		}
		return nil
	})
}

func (s *subject) sync() error {
	return bounded("sync", func() error {
		ctx, cancel := context.WithTimeout(context.Background(), Limit/2)
		defer cancel()
		return s.Sync(ctx)
	})
}

func (s *subject) close() error { return bounded("close", s.Close) }

func (s *subject) hold(records []Record) store.LeaseID {
	keys := make([]connector.Key, len(records))
	for i, r := range records {
		keys[i] = r.key()
	}
	_, lease := s.Lookup(s.namespaces[records[0].Size], []connector.Shard{0}, keys, time.Minute)
	return lease
}

// physicalBytes is what a directory occupies on the disk.
func physicalBytes(dir string) (int64, error) {
	var total int64
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		var st syscall.Stat_t
		if err == nil {
			err = syscall.Lstat(path, &st)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil // removed meanwhile
		}
		total += st.Blocks * 512
		return err
	})
	return total, err
}

// slackOfSegment is what a segment may be counted for beyond what it occupies.
const slackOfSegment = 64 << 10

// checkBytes compares the disk with the cap and with what the store thinks.
func (s *subject) checkBytes() error {
	before := s.Stats()
	on, err := physicalBytes(s.dir)
	if err != nil {
		return err
	}
	after := s.Stats()
	if err := s.limits.check(on); err != nil {
		return err
	}
	switch counted := max(before.PhysicalBytes, after.PhysicalBytes); {
	case counted > s.limits.cap:
		return fmt.Errorf("%d bytes counted, the cap is %d", counted, s.limits.cap)
	case counted < on:
		return fmt.Errorf("%d bytes counted, %d on disk", counted, on)
	}
	return s.checkSegments()
}

// checkSegments compares the counted size of segments with what they occupy, at a moment when
// none is being made or removed; such a moment comes soon.
func (s *subject) checkSegments() (err error) {
	const tries, pause = 200, 10 * time.Millisecond
	for range tries {
		segments, failed := physicalBytes(filepath.Join(s.dir, "segments"))
		if failed != nil {
			return failed
		}
		st := s.Stats()
		if st.SegmentBytes <= segments+int64(st.Segments+1)*slackOfSegment {
			return nil
		}
		err = fmt.Errorf("segments counted as %d bytes, they occupy %d", st.SegmentBytes, segments)
		time.Sleep(pause)
	}
	return err
}
