package fault

import (
	"bytes"
	"errors"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func TestScriptsRoundTrip(t *testing.T) {
	for text, want := range map[string]string{
		"(on write segments/* (after 100) (for 50) EIO)":                  "(on write segments/* (after 100) (for 50) EIO)",
		"(delay 1s (prob 0.01 seed 7))":                                   "(on any ** (prob 0.01 seed 7) (delay 1s))",
		"(on sync ENOSPC) # a comment\n(on list segments (for 1) EMFILE)": "(on sync ** ENOSPC)\n(on list segments (for 1) EMFILE)",
		"(on read segments/* (range 0 4096) (every 3) (flip 2))":          "(on read segments/* (every 3) (range 0 4096) (flip 2))",
		"(on write (since 10ms) (until 1s) torn)":                         "(on write ** (since 10ms) (until 1s) torn)",
		"(on free ** full)":                                               "(on free ** full)",
		"":                                                                "",
	} {
		s, err := Parse(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if got := s.String(); got != want {
			t.Errorf("%q prints as %q, want %q", text, got, want)
		}
	}
}

func TestWrongScriptsAreRefused(t *testing.T) {
	for _, text := range []string{
		"(", "on", "(on)", "(on write)", "(on write EIO", "(on write EIO))", "(on paint EIO)", "(on write EIO EIO)",
		"(on write (after 0) EIO)", "(on write (prob 2 seed 1) EIO)", "(on write (prob NaN seed 1) EIO)",
		"(on sync torn)", "(on write full)", "(on read drop)", "(on sync (flip 1))", "(on read (range 5 5) EIO)", "(delay 2h)",
		"(on write (since 2s) (until 1s) EIO)", "(on write [ EIO)", "(on write EIO (delay 1s))",
	} {
		if s, err := Parse(text); err == nil {
			t.Errorf("%q is taken for %q", text, s)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("(on write segments/* (after 100) (for 50) EIO) (delay 1s (prob 0.01 seed 7))")
	f.Add("(on read index/*.sst (range 0 4096) (every 2) (since 1ms) (until 2ms) (flip 3)) # note")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Parse(text)
		if err != nil {
			return
		}
		again, err := Parse(s.String())
		if err != nil || !slices.Equal(s, again) {
			t.Errorf("%q prints as %q, which is %q, %v", text, s, again, err)
		}
	})
}

func injector(t *testing.T, text string) *Injector {
	t.Helper()
	s, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return NewInjector(s)
}

func TestCountsBeginWhenTheFaultsAreSwitchedOn(t *testing.T) {
	i := injector(t, "(on write segments/* (after 2) (for 3) EIO)")
	op := Op{Kind: Write, Path: "segments/a", Bytes: 1}
	if a := i.Act(op); a.Err != nil {
		t.Error("a fault before it was switched on")
	}
	for range 2 {
		i.On()
		var got []bool
		for range 7 {
			got = append(got, errors.Is(i.Act(op).Err, syscall.EIO))
		}
		if want := []bool{false, false, true, true, true, false, false}; !slices.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
		for _, other := range []Op{{Kind: Read, Path: "segments/a"}, {Kind: Write, Path: "index/a"}, {Kind: Write, Path: "segments"}} {
			if i.Act(other).Err != nil {
				t.Errorf("%+v fails", other)
			}
		}
		i.Off()
	}
	if i.Injected() != 6 {
		t.Errorf("%d injected, want 6", i.Injected())
	}
}

func TestRangesMeanTheBytesThatAreTouched(t *testing.T) {
	i := injector(t, "(on read f (range 4096 8192) EIO)")
	i.On()
	for _, c := range []struct {
		at, n int64
		fails bool
	}{{0, 4096, false}, {0, 4097, true}, {8191, 1, true}, {8192, 10, false}} {
		if got := i.Act(Op{Kind: Read, Path: "f", Offset: c.at, Bytes: c.n}).Err != nil; got != c.fails {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

func TestDelaysEndWhenTheFaultsDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i, began := injector(t, "(delay 1m)"), time.Now()
		i.On()
		var done sync.WaitGroup
		done.Go(func() { i.Act(Op{Kind: Read, Path: "f"}) })
		synctest.Wait()
		i.Off()
		done.Wait()
		if took := time.Since(began); took != 0 || i.Injected() != 1 {
			t.Errorf("%d operations were held up, for %s", i.Injected(), took)
		}
	})
}

func TestPatterns(t *testing.T) {
	for _, c := range []struct {
		pattern, path string
		want          bool
	}{
		{"**", "a/b/c", true}, {"index/**", "index/a/b", true}, {"index/**", "index", true},
		{"index/*.log", "index/1.log", true}, {"index/*.log", "index/a/1.log", false}, {"FORMAT", "FORMAT", true},
	} {
		if Match(c.pattern, c.path) != c.want {
			t.Errorf("%+v", c)
		}
	}
}

func TestFlippedBitsAreThatMany(t *testing.T) {
	b := make([]byte, 4096)
	a := Action{Flip: 1, Draw: 9}
	a.FlipBits(b)
	if bytes.Count(b, []byte{0}) != len(b)-1 {
		t.Error("not one byte differs")
	}
}
