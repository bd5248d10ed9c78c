package cuda

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvconn/kvconn/gpu"
	"github.com/kvconn/kvconn/gpu/region"
	"github.com/kvconn/kvconn/gpu/ring"
)

// underWay is how many saves are in the copier, and how many wait.
func (p *pace) underWay() (saves, waiting int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.saves, len(p.waiting)
}

// More saves than the ring has slots, and not one of them ends: a load goes past them.
func TestALoadIsNotBehindAQueueOfSaves(t *testing.T) {
	version := "FAKECUDA_VERSION=12040" // each direction has a call of its own
	e := startEngine(t, 0, version)
	r := newRig(t, func(o *Options) { o.CopyTimeout = time.Hour }, version, "FAKECUDA_FAULT=cuMemcpyDtoHAsync:1+:stall")
	m := r.open(e.region(region.IPC, granularity))
	p := copierOf(t, r)
	const saves = 2 * ring.Slots
	var wait sync.WaitGroup
	defer wait.Wait()
	defer p.end(errEnded) // the saves do not end before
	for range saves {
		wait.Go(func() {
			b := gpu.Batch{Direction: gpu.Save, Pieces: []gpu.Piece{r.piece(0, 0, 1<<20, 4096)}}
			if err := m.Copy(t.Context(), &b); !errors.Is(err, gpu.ErrLost) {
				t.Errorf("a save that never ends: %v", err)
			}
		})
	}
	awaitTrue(t, "all saves are queued", func() bool {
		in, waiting := p.pace.underWay()
		return in == maxSaves && waiting == saves-maxSaves
	})
	for seed := range uint64(2 * ring.Slots) {
		r.fillHost(0, 4096, 8192, seed)
		if err := m.Copy(t.Context(), &gpu.Batch{Pieces: []gpu.Piece{r.piece(0, 8192, 0, 4096)}}); err != nil {
			t.Fatal(err)
		}
	}
	e.wants(0, 8192, 4096, 2*ring.Slots-1)
}

// While a load is under way there are fewer bytes of saves in the copier.
func TestSavesAreFewBesideALoad(t *testing.T) {
	version := "FAKECUDA_VERSION=12040"
	const saves, eachBytes = 20, 2 << 20
	for name, isLoading := range map[string]bool{"a load is under way": true, "no load is under way": false} {
		t.Run(name, func(t *testing.T) {
			e := startEngine(t, 0, version)
			r := newRig(t, func(o *Options) { o.CopyTimeout = time.Hour }, version,
				"FAKECUDA_FAULT=cuMemcpyDtoHAsync:1+:stall,cuMemcpyHtoDAsync:1+:stall")
			m := r.open(e.region(region.IPC, granularity))
			p := copierOf(t, r)
			var wait sync.WaitGroup
			defer wait.Wait()
			defer p.end(errEnded)
			want := saveBytes / eachBytes
			if isLoading {
				want = saveBytesBesideLoads / eachBytes
				wait.Go(func() { _ = m.Copy(t.Context(), &gpu.Batch{Pieces: []gpu.Piece{r.piece(0, 0, 0, 4096)}}) })
				awaitTrue(t, "the load is under way", p.copies)
			}
			for range saves {
				wait.Go(func() {
					_ = m.Copy(t.Context(), &gpu.Batch{Direction: gpu.Save, Pieces: []gpu.Piece{r.piece(0, 0, 0, eachBytes)}})
				})
			}
			awaitTrue(t, fmt.Sprint(want, " saves are in the copier"), func() bool {
				in, waiting := p.pace.underWay()
				return in == want && waiting == saves-want
			})
		})
	}
}

// Loads and saves at random, some of which are given up: the limits hold, none is forgotten, and the first is the first to go.
func TestPaceInAnyOrder(t *testing.T) {
	for seed := range uint64(50) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 5))
			var p pace
			var wait sync.WaitGroup
			gone := make(chan struct{})
			for range 200 {
				bytes, lasts, waits := uint64(1+rng.IntN(12<<20)), time.Duration(rng.IntN(100)), time.Duration(rng.IntN(2000))
				switch rng.IntN(3) {
				case 0:
					p.beginLoad()
					time.AfterFunc(lasts, p.endLoad)
				default:
					wait.Go(func() {
						ctx, cancel := context.WithTimeout(t.Context(), waits)
						defer cancel()
						if !p.beginSave(ctx, gone, bytes) {
							return
						}
						time.Sleep(lasts)
						p.endSave(bytes)
					})
				}
				time.Sleep(time.Duration(rng.IntN(20)))
				synctest.Wait()
				p.mu.Lock()
				if len(p.waiting) > 0 && p.hasRoom(p.waiting[0].bytes) {
					t.Errorf("seed %d: a save waits though there is room", seed)
				}
				if p.saves > maxSaves || p.saves > 1 && p.bytes > saveBytes {
					t.Errorf("seed %d: %d saves of %d bytes", seed, p.saves, p.bytes)
				}
				p.mu.Unlock()
			}
			time.Sleep(time.Hour)
			wait.Wait()
			if p.loads != 0 || p.saves != 0 || p.bytes != 0 || len(p.waiting) != 0 {
				t.Errorf("seed %d: %+v is left", seed, &p)
			}
		})
	}
}

func TestSavesGoInTheirOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p pace
		gone := make(chan struct{})
		p.beginLoad()
		const first = 5 << 20
		if !p.beginSave(t.Context(), gone, first) {
			t.Fatal("the first save waits")
		}
		var mu sync.Mutex
		var went []uint64
		var wait sync.WaitGroup
		sizes := []uint64{6 << 20, 1 << 20, 100 << 20, 2 << 20} // the small ones would fit beside the first
		for _, bytes := range sizes {
			wait.Go(func() {
				if p.beginSave(t.Context(), gone, bytes) {
					mu.Lock()
					went = append(went, bytes)
					mu.Unlock()
					time.Sleep(time.Second)
					p.endSave(bytes)
				}
			})
			synctest.Wait()
		}
		mu.Lock()
		if len(went) > 0 {
			t.Errorf("%v overtook the first", went)
		}
		mu.Unlock()
		p.endSave(first)
		wait.Wait()
		if slices.Sort(went[:2]); !slices.Equal(went, []uint64{1 << 20, 6 << 20, 100 << 20, 2 << 20}) {
			t.Errorf("they went in the order %v", went)
		}
		// The end of a copier ends all waits.
		if !p.beginSave(t.Context(), gone, saveBytesBesideLoads) {
			t.Fatal("it waits for nobody")
		}
		close(gone)
		if p.beginSave(t.Context(), gone, 1) {
			t.Error("a save was let in after the end")
		}
	})
}
