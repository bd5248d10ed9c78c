package kernel

import (
	"errors"
	"fmt"
)

// ErrBounds means that a run lies outside of the device memory or the staging buffer.
var ErrBounds = errors.New("run outside of memory")

// Memory is device memory as the reference sees it: bytes that begin at a device address.
type Memory struct {
	Address uint64
	Bytes   []byte
}

// Gather does in Go what the kernel of that name does on a device. It is for tests and for
// drivers without a device. If it returns an error, nothing was copied.
func Gather(staging []byte, from Memory, runs []Run) error {
	if err := check(staging, from, runs); err != nil {
		return err
	}
	for _, r := range runs {
		copy(staging[r.OffsetBytes:], from.run(r))
	}
	return nil
}

// Scatter does in Go what the kernel of that name does on a device: see [Gather].
func Scatter(to Memory, staging []byte, runs []Run) error {
	if err := check(staging, to, runs); err != nil {
		return err
	}
	for _, r := range runs {
		copy(to.run(r), staging[r.OffsetBytes:])
	}
	return nil
}

// run returns the bytes of a run that check found to be inside.
func (m Memory) run(r Run) []byte {
	return m.Bytes[r.Device-m.Address:][:r.LengthBytes]
}

// check finds runs that are not inside. Comparisons subtract from what is known to be larger,
// so that none overflows.
func check(staging []byte, m Memory, runs []Run) error {
	for i, r := range runs {
		offset, length := uint64(r.OffsetBytes), uint64(r.LengthBytes)
		if length > MaxRunBytes {
			return fmt.Errorf("run %d: %d bytes are more than a run may have: %w", i, length, ErrBounds)
		}
		if n := uint64(len(staging)); offset > n || length > n-offset {
			return fmt.Errorf("run %d: %d bytes at %d of %d bytes of staging: %w", i, length, offset, n, ErrBounds)
		}
		n := uint64(len(m.Bytes))
		if r.Device < m.Address || r.Device-m.Address > n || length > n-(r.Device-m.Address) {
			return fmt.Errorf("run %d: %d bytes at %#x, memory has %d at %#x: %w", i, length, r.Device, n, m.Address, ErrBounds)
		}
	}
	return nil
}
