package faultfs

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"syscall"
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/fault"
	"github.com/kvconn/kvconn/internal/testkit/manifests"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk"
)

// under opens a store with a script below it, and a namespace in it.
func under(t *testing.T, script string) (*disk.Store, connector.NamespaceDigest, *fault.Injector) {
	t.Helper()
	parsed, err := fault.Parse(script)
	if err != nil {
		t.Fatal(err)
	}
	i := fault.NewInjector(parsed)
	s, err := disk.Open(context.Background(), Under(disk.Options{
		Dir: t.TempDir(), MaxBytes: 16 << 20, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}, i))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	ns, err := s.OpenNamespace(manifests.New())
	if err != nil {
		t.Fatal(err)
	}
	return s, ns, i
}

const payloadBytes = 20_000

func payload() []byte {
	b := store.AlignedBuffer(payloadBytes)
	for i := range b {
		b[i] = byte(i * 7)
	}
	return b
}

func save(t *testing.T, s *disk.Store, ns connector.NamespaceDigest, key byte) error {
	t.Helper()
	done := make(chan error, 1)
	op := &store.WriteOp{Record: store.Record{ID: store.RecordID{Namespace: ns, Key: connector.Key{key}}}, Payload: payload()}
	if _, err := s.Write([]*store.WriteOp{op}, func(op *store.WriteOp) { done <- op.Err }); err != nil {
		return err
	}
	return <-done
}

func load(s *disk.Store, ns connector.NamespaceDigest, key byte) ([]byte, error) {
	op := &store.ReadOp{Record: store.Record{ID: store.RecordID{Namespace: ns, Key: connector.Key{key}}}, Payload: store.AlignedBuffer(payloadBytes)}
	s.Read(context.Background(), []*store.ReadOp{op}, func(*store.ReadOp) {})
	return op.Payload, op.Err
}

func TestOneScriptIsForSegmentsAndJournal(t *testing.T) {
	for _, script := range []string{"(on sync segments/* EIO)", "(on sync index/* EIO)"} {
		s, ns, i := under(t, script)
		if err := save(t, s, ns, 1); err != nil {
			t.Fatal(err)
		}
		i.On()
		if err := s.Sync(t.Context()); !errors.Is(err, syscall.EIO) && !errors.Is(err, store.ErrIO) {
			t.Errorf("%s: sync: %v", script, err)
		}
		if i.Injected() == 0 {
			t.Errorf("%s met nothing", script)
		}
	}
}

func TestFaultsOfReadsAndWritesReachTheStore(t *testing.T) {
	for script, want := range map[string]error{
		"(on read segments/* EIO)":      syscall.EIO,
		"(on read segments/* (flip 3))": store.ErrCorrupt,
	} {
		s, ns, i := under(t, script)
		if err := save(t, s, ns, 1); err != nil {
			t.Fatal(err)
		}
		if b, err := load(s, ns, 1); err != nil || !bytes.Equal(b, payload()) {
			t.Fatalf("%s: before the fault: %v", script, err)
		}
		i.On()
		if _, err := load(s, ns, 1); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", script, err, want)
		}
	}
	for script, want := range map[string]error{
		"(on write segments/* (for 4) ENOSPC)": syscall.ENOSPC,
		"(on write segments/* (for 4) torn)":   fault.ErrTorn,
	} {
		s, ns, i := under(t, script)
		if err := save(t, s, ns, 1); err != nil {
			t.Fatal(err)
		}
		i.On()
		if err := save(t, s, ns, 2); err != nil && !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", script, err, want)
		}
		i.Off()
		if b, err := load(s, ns, 2); err == nil && !bytes.Equal(b, payload()) {
			t.Errorf("%s: wrong bytes", script)
		}
	}
	s, ns, i := under(t, "(on write segments/* drop)")
	i.On()
	if err := save(t, s, ns, 1); err != nil {
		t.Error(err)
	}
	if _, err := load(s, ns, 1); !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("a write that was lost is read: %v", err)
	}
}

// A copy that is made while the disk is frozen does not change under it.
func TestFrozenDiskTakesNoWrite(t *testing.T) {
	s, ns, i := under(t, "")
	thaw := i.Freeze()
	done := make(chan error, 1)
	go func() { done <- save(t, s, ns, 1) }()
	if b, err := load(s, ns, 1); err == nil {
		t.Errorf("%d bytes of what cannot have been written", len(b))
	}
	select {
	case err := <-done:
		t.Errorf("a write ended on a frozen disk: %v", err)
	default:
	}
	thaw()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
