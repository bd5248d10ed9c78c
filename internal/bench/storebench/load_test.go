package storebench

import (
	"bytes"
	"testing"
)

func TestMemcpyCopiesEveryPiece(t *testing.T) {
	src := bytes.Repeat([]byte("kv cache"), 1001)
	dst := make([]byte, len(src))
	if rate := Memcpy(dst, src, 100, 3); rate <= 0 || !bytes.Equal(dst, src) {
		t.Errorf("rate %v, equal: %v", rate, bytes.Equal(dst, src))
	}
}

func TestDeviceIsReadRaw(t *testing.T) {
	d, err := NewDevice(t.TempDir(), 4<<20, 4<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}()
	if rate, err := d.Read(); err != nil || rate <= 0 || d.Shape() == "" {
		t.Errorf("%v bytes/s, %v", rate, err)
	}
}
