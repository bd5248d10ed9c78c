package eventlog

import (
	"context"
	"encoding/binary"
	"errors"
	"testing"
	"testing/synctest"
	"unsafe"

	"github.com/kvconn/kvconn/store"
)

// numbered are n events that carry their numbers, from first on.
func numbered(first uint64, n int) []Event {
	out := make([]Event, n)
	for i := range out {
		binary.LittleEndian.PutUint64(out[i].Key[:], first+uint64(i))
	}
	return out
}

// read reads until a follower has seen event last, and checks the numbers.
func read(t *testing.T, f *Follower, last uint64) {
	t.Helper()
	buf := make([]Event, 0, 1000)
	for next := f.Seq() + 1; next <= last; {
		first, list, err := f.Next(t.Context(), buf)
		if err != nil || first != next {
			t.Fatalf("events from %d, %v; want %d", first, err, next)
		}
		for i := range list {
			if got := binary.LittleEndian.Uint64(list[i].Key[:]); got != next {
				t.Fatalf("event %d is %d", next, got)
			}
			next++
		}
	}
}

func TestAnEventTakesTheMemoryThatIsAccounted(t *testing.T) {
	if n := unsafe.Sizeof(Event{}); n != EventBytes {
		t.Errorf("%d bytes, want %d", n, EventBytes)
	}
}

func TestFollowersReadEveryEventInOrder(t *testing.T) {
	l := New(0)
	l.Publish(numbered(1, 10)) // before anybody follows
	const total = 200_000
	done := make(chan struct{})
	fast, slow := l.Follow(), l.Follow()
	go func() {
		defer close(done)
		read(t, fast, total)
	}()
	for seq := uint64(11); seq <= total; {
		n := min(1+int(seq%777), int(total-seq+1))
		l.Publish(numbered(seq, n))
		seq += uint64(n)
		if behind := seq - slow.Seq(); behind > 30_000 {
			read(t, slow, seq-20_000)
		}
		if behind := seq - fast.Seq(); behind > 30_000 {
			read(t, slow, seq-1) // gives the other one time
			for seq-fast.Seq() > 30_000 && t.Context().Err() == nil {
				select {
				case <-done:
					t.Fatal("it ended early")
				default:
				}
			}
		}
	}
	read(t, slow, total)
	<-done
	l.Close()
	if _, _, err := slow.Next(t.Context(), make([]Event, 0, 1)); !errors.Is(err, store.ErrClosed) {
		t.Errorf("after the end: %v", err)
	}
}

// What a follower has yet to read is kept up to the bound, and given back once it has been
// read or the follower has gone.
func TestMemoryIsTakenOnlyWhileSomeoneIsBehind(t *testing.T) {
	const bound = 2 * LeastBytes
	for name, catchUp := range map[string]func(*Follower, uint64){
		"read":   func(f *Follower, seq uint64) { read(t, f, seq) },
		"closed": func(f *Follower, _ uint64) { f.Close() },
	} {
		l := New(bound)
		if l.Publish(numbered(1, chunkEvents)); l.Bytes() != 0 {
			t.Errorf("%s: %d bytes for nobody", name, l.Bytes())
		}
		f := l.Follow()
		seq := uint64(chunkEvents)
		publish := func(chunks int) {
			for range chunks {
				l.Publish(numbered(seq+1, chunkEvents))
				seq += chunkEvents
			}
		}
		publish(2 * leastChunks)
		if err := f.Lagged(); err != nil || l.Bytes() != bound {
			t.Fatalf("%s: at the bound: %d bytes, %v", name, l.Bytes(), err)
		}
		catchUp(f, seq)
		publish(1)
		if l.Bytes() != LeastBytes {
			t.Errorf("%s: %d bytes when nobody is behind, want %d", name, l.Bytes(), LeastBytes)
		}
		late, err := l.FollowAfter(seq - (leastChunks-1)*chunkEvents)
		if err != nil {
			t.Fatalf("%s: resume: %v", name, err)
		}
		read(t, late, seq)
		publish(2*leastChunks + 1)
		if l.Bytes() > bound || !errors.Is(late.Lagged(), store.ErrLagged) {
			t.Errorf("%s: past the bound: %d bytes, %v", name, l.Bytes(), late.Lagged())
		}
		if _, _, err := late.Next(t.Context(), make([]Event, 0, 1)); !errors.Is(err, store.ErrLagged) {
			t.Errorf("%s: %v", name, err)
		}
		if publish(2); l.Bytes() != LeastBytes { // one that has lost events holds none
			t.Errorf("%s: %d bytes for one that fell behind", name, l.Bytes())
		}
	}
}

func TestNextEndsWithItsContextAndWithClose(t *testing.T) {
	l := New(0)
	f := l.Follow()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := f.Next(ctx, make([]Event, 0, 1)); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	ended := make(chan error, 1)
	go func() {
		_, _, err := f.Next(t.Context(), make([]Event, 0, 1))
		ended <- err
	}()
	f.Close()
	if err := <-ended; !errors.Is(err, store.ErrClosed) {
		t.Errorf("%v", err)
	}
	if _, err := l.FollowAfter(1); !errors.Is(err, store.ErrLagged) {
		t.Errorf("an event that never was: %v", err)
	}
}

// When what the numbers in events mean has changed, all followers begin again: the ones that have read all,
// that have not, that wait, and that come back. A follower that begins afterwards loses nothing.
func TestSkipHasFollowersBeginAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(0)
		l.Skip() // nobody follows
		first := l.Follow().Seq()
		read, unread, waits := l.Follow(), l.Follow(), l.Follow()
		ended := make(chan error, 1)
		next := func(f *Follower) error {
			_, _, err := f.Next(t.Context(), make([]Event, 0, 10))
			return err
		}
		l.Publish(numbered(first+1, 3))
		if err := errors.Join(next(read), next(waits)); err != nil {
			t.Fatal(err)
		}
		go func() { ended <- next(waits) }()
		synctest.Wait()
		l.Skip()
		if err := <-ended; !errors.Is(err, store.ErrLagged) {
			t.Errorf("one that waits: %v", err)
		}
		if err := next(read); !errors.Is(err, store.ErrLagged) {
			t.Errorf("one that has read all: %v", err)
		}
		if err := next(unread); !errors.Is(err, store.ErrLagged) || !errors.Is(unread.Lagged(), store.ErrLagged) {
			t.Errorf("one that has not: %v, %v", err, unread.Lagged())
		}
		if _, err := l.FollowAfter(first + 3); !errors.Is(err, store.ErrLagged) {
			t.Errorf("one that comes back: %v", err)
		}
		begins := l.Follow()
		l.Publish(numbered(first+5, 2))
		buf := make([]Event, 0, 10)
		if seq, list, err := begins.Next(t.Context(), buf); seq != first+5 || len(list) != 2 || list[0] != numbered(first+5, 1)[0] || err != nil {
			t.Errorf("%d events from %d, %v; want 2 from %d", len(list), seq, err, first+5)
		}
	})
}

func TestPublishAllocatesNothing(t *testing.T) {
	l := New(0)
	f := l.Follow()
	events, buf := numbered(1, 256), make([]Event, 0, 1024)
	step := func() {
		l.Publish(events)
		if _, _, err := f.Next(context.Background(), buf); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 * leastChunks * chunkEvents / 256 {
		step()
	}
	if n := testing.AllocsPerRun(1000, step); n != 0 {
		t.Errorf("%v allocations a batch", n)
	}
}

func BenchmarkPublish(b *testing.B) {
	l := New(0)
	f := l.Follow()
	events, buf := numbered(1, 256), make([]Event, 0, 1024)
	b.SetBytes(int64(len(events)) * EventBytes)
	b.ReportAllocs()
	for b.Loop() {
		l.Publish(events)
		if _, _, err := f.Next(context.Background(), buf); err != nil {
			b.Fatal(err)
		}
	}
}
