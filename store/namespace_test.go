package store

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store/internal/disk"
)

// slowFS is the file system with atomic writes that wait once they are told to.
type slowFS struct {
	disk.OS
	hold, began chan struct{}
}

func (f *slowFS) WriteFileAtomic(path string, b []byte) error {
	select {
	case f.began <- struct{}{}:
		<-f.hold
	default:
	}
	return f.OS.WriteFileAtomic(path, b)
}

// An engine of a new model on a disk that hangs must not stop those that are there.
func TestLookupsDoNotWaitForANewNamespace(t *testing.T) {
	f := &slowFS{hold: make(chan struct{}), began: make(chan struct{})}
	s, err := Open(t.Context(), Options{Dir: t.TempDir(), MaxBytes: 64 << 20}.WithFS(f, vfs.Default))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	manifest := func(model string) *connector.Manifest {
		return &connector.Manifest{
			Engine: "test/1", Model: model, KVDType: "float32", BlockSize: 16, Groups: []connector.Group{{Layers: 1}},
			TensorParallel: 1, PipelineParallel: 1, KeyScheme: connector.KeySchemeTokens, HashScheme: connector.HashScheme,
		}
	}
	ns, err := s.OpenNamespace(manifest("known"))
	if err != nil {
		t.Fatal(err)
	}
	opened := make(chan error)
	go func() {
		_, err := s.OpenNamespace(manifest("new"))
		opened <- err
	}()
	<-f.began // the new one waits for the disk
	if n, _ := s.Lookup(ns, []connector.Shard{0}, []connector.Key{{1}}, 0); n != 0 {
		t.Error("found a record that nobody stored")
	}
	_ = s.PayloadBytes(ns, 0)
	close(f.hold)
	if err := <-opened; err != nil {
		t.Fatal(err)
	}
	if again, err := s.OpenNamespace(manifest("new")); err != nil || again != ns+1 {
		t.Errorf("namespace %d, %v; want %d", again, err, ns+1)
	}
}
