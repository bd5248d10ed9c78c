package copier

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// reservedConnections is how many engines' connections find a place: one for each rank on a device.
const reservedConnections = 64

// connections are the engines' that the copier holds. The kernel closes the files of a process that was killed from the
// highest number down, so an engine sees the end of its connection after the driver has lost the device only if the number
// is below all of the driver's. These are reserved before the driver is loaded.
type connections struct {
	mu             sync.Mutex
	reserved, free []int
	// idle stands in for a connection.
	idle int
}

// reserveConnections takes the lowest numbers that are free.
func reserveConnections() (*connections, error) {
	idle, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("reserve descriptors: %w", err)
	}
	c := &connections{idle: idle}
	for range reservedConnections {
		fd, err := unix.FcntlInt(uintptr(idle), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil { // few descriptors are allowed: what is there has to do
			break
		}
		c.reserved = append(c.reserved, fd)
	}
	c.free = slices.Clone(c.reserved)
	return c, nil
}

// hold duplicates a connection, and returns the number for release. Where all are taken it is one above the driver's.
func (c *connections) hold(connection *os.File) (int, error) {
	fd, err := descriptor(connection)
	if err != nil {
		return 0, fmt.Errorf("hold a connection: %w", err)
	}
	defer runtime.KeepAlive(connection)
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := len(c.free); n > 0 {
		if held := c.free[n-1]; unix.Dup3(fd, held, unix.O_CLOEXEC) == nil {
			c.free = c.free[:n-1]
			return held, nil
		}
	}
	held, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("hold a connection: %w", err)
	}
	return held, nil
}

// release closes what hold returned. Its number stays reserved.
func (c *connections) release(held int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !slices.Contains(c.reserved, held) {
		_ = unix.Close(held)
		return
	}
	if unix.Dup3(c.idle, held, unix.O_CLOEXEC) == nil {
		c.free = append(c.free, held)
		return
	}
	// Interrupted. The number may be anybody's once it is closed, so it is not reserved any more.
	c.reserved = slices.DeleteFunc(c.reserved, func(fd int) bool { return fd == held })
	_ = unix.Close(held)
}
