package offheap

import (
	"testing"
	"unsafe"
)

func TestMapIsZeroedAndAligned(t *testing.T) {
	for _, n := range []int{1, pageBytes, 3 << 20, 40 << 20} {
		b, err := Map(n)
		if err != nil {
			t.Fatal(err)
		}
		if len(b) < n || uintptr(unsafe.Pointer(unsafe.SliceData(b)))%pageBytes != 0 || b[n-1] != 0 {
			t.Errorf("%d bytes: %d", n, len(b))
		}
		if err := Unmap(b); err != nil {
			t.Error(err)
		}
	}
}
