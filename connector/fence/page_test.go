package fence

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

func TestNoCopyBeginsBehindAFence(t *testing.T) {
	engine, f, err := New()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = engine.Close() }()
	daemon, err := Open(f)
	_ = f.Close()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = daemon.Close() }()
	if !daemon.Begin() || engine.Idle() {
		t.Fatal("a copy is not counted in")
	}
	engine.Fence()
	if engine.Idle() {
		t.Error("idle while a copy is under way")
	}
	daemon.End()
	if daemon.Begin() || !engine.Idle() {
		t.Error("a copy began after the fence")
	}
}

// A writer that is counted in may write; once fenced and idle nobody does.
func TestFencedAndIdleMeansNoMoreWrites(t *testing.T) {
	p, f, err := New()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Close() }()
	_ = f.Close()
	memory := 0 // written without a lock: the race detector is the judge
	var mu sync.Mutex
	var writers sync.WaitGroup
	for range 4 {
		writers.Go(func() {
			for p.Begin() {
				mu.Lock()
				memory++
				mu.Unlock()
				p.End()
			}
		})
	}
	p.Fence()
	for !p.Idle() {
	}
	mu.Lock()
	before := memory
	mu.Unlock()
	writers.Wait()
	if memory != before {
		t.Errorf("%d writes after the fence", memory-before)
	}
}

func TestOpenRefusesWhatCouldShrink(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "page"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if err := f.Truncate(pageBytes); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(f); !errors.Is(err, ErrPage) {
		t.Errorf("%v, want ErrPage", err)
	}
}
