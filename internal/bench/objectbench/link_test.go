package objectbench

import (
	"bytes"
	"io"
	"net"
	"testing"
)

// pipes is a listener of one connection in memory.
type pipes struct {
	net.Listener
	end net.Conn
}

func (p pipes) Accept() (net.Conn, error) { return p.end, nil }

// A connection of a link carries what it is given, however much more than the link's burst that is.
func TestLinkCarriesAllBytes(t *testing.T) {
	const bytesPerS = 1 << 30
	ours, theirs := net.Pipe()
	l := newLink(pipes{end: theirs}, bytesPerS)
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	want := bytes.Repeat([]byte("0123456789abcde"), 1<<20)
	go func() {
		_, _ = c.Write(want)
		_, _ = io.Copy(c, c)
	}()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(ours, got); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("%d bytes differ: %v", len(got), err)
	}
	if _, err := ours.Write(want[:1000]); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(ours, got[:1000]); err != nil || !bytes.Equal(got[:1000], want[:1000]) {
		t.Fatalf("echo: %v", err)
	}
	_ = ours.Close()
}

func TestNoLinkWithoutALimit(t *testing.T) {
	p := pipes{}
	if l := newLink(p, 0); l != net.Listener(p) {
		t.Errorf("%T", l)
	}
}
