package libcuda

import (
	"errors"
	"strings"
	"testing"
)

func TestACallOfAnotherWordCountIsRefused(t *testing.T) {
	l := new(Library)
	for e := range entryCount {
		for _, n := range []int{entryPoints[e].words - 1, entryPoints[e].words + 1} {
			if err := l.call(e, make([]uintptr, n)...); !errors.Is(err, errWords) {
				t.Errorf("%s with %d words: %v", entryPoints[e].name, n, err)
			}
		}
		if err := l.call(e, make([]uintptr, entryPoints[e].words)...); !errors.Is(err, ErrUnsupported) {
			t.Errorf("%s that the driver lacks: %v", entryPoints[e].name, err)
		}
	}
}

func TestTableIsWhole(t *testing.T) {
	seen := map[string]bool{}
	for e := range entryCount {
		p := &entryPoints[e]
		if p.name == "" || p.params == "" || p.words == 0 || p.version == 0 || seen[p.name] {
			t.Errorf("entry %d: %+v", e, *p)
		}
		if !p.optional && Version(p.version) > OldestVersion {
			t.Errorf("%s is of CUDA %s, and drivers for %s are served", p.name, Version(p.version), OldestVersion)
		}
		seen[p.name] = true
	}
}

func TestErrorsNameTheCall(t *testing.T) {
	err := error(&Error{Entry: "cuMemFree", Code: IllegalAddress, Args: []uintptr{0x7f00}})
	if got := err.Error(); got != "cuMemFree(0x7f00): ILLEGAL_ADDRESS (700)" {
		t.Error(got)
	}
	if !IsSticky(err) || CodeOf(err) != IllegalAddress || IsSticky(errors.New("another")) {
		t.Error("the code is not told")
	}
	if got := Code(12345).String(); !strings.Contains(got, "12345") {
		t.Error(got)
	}
	// cuda.h says of these that the context stays usable.
	for _, c := range []Code{701, 704, 705, 708, 711, AlreadyRegistered, NotRegistered, OutOfMemory, NotReady, InvalidValue} {
		if c.Sticky() {
			t.Errorf("%v is sticky", c)
		}
	}
}

func TestUUIDsReadAsNvidiaWritesThem(t *testing.T) {
	u := UUID{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
	if got := u.String(); got != "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f" {
		t.Error(got)
	}
}

func TestALibraryThatIsNoDriverIsToldSo(t *testing.T) {
	if _, err := Open("/nonexistent/libcuda.so.1"); !errors.Is(err, ErrNoDriver) {
		t.Error(err)
	}
}
