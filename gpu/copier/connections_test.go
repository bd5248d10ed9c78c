package copier

import (
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// atEnd reports whether no duplicate of the other end of a pair of sockets is open.
func atEnd(t *testing.T, ours *os.File) bool {
	t.Helper()
	fd, err := descriptor(ours)
	if err != nil {
		t.Fatal(err)
	}
	n, _, err := unix.Recvfrom(fd, make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
	return n == 0 && err == nil
}

func TestConnectionsAreHeldBelowWhatIsOpenedLater(t *testing.T) {
	c, err := reserveConnections()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		for _, fd := range append(c.reserved, c.idle) {
			_ = unix.Close(fd)
		}
	}()
	for range 2 { // released numbers serve again
		var held []int
		var ends []*os.File
		for i := range reservedConnections + 1 {
			ours, theirs, err := Pair()
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = ours.Close() }()
			fd, err := c.hold(theirs)
			if err != nil || slices.Contains(c.reserved, fd) != (i < reservedConnections) || slices.Contains(held, fd) {
				t.Fatalf("connection %d is held as %d, %v", i, fd, err)
			}
			if err := theirs.Close(); err != nil {
				t.Fatal(err)
			}
			held, ends = append(held, fd), append(ends, ours)
		}
		for i, fd := range held {
			if atEnd(t, ends[i]) {
				t.Errorf("connection %d has ended while it is held", i)
			}
			c.release(fd)
			if !atEnd(t, ends[i]) {
				t.Errorf("connection %d goes on once it is released", i)
			}
		}
	}
}
