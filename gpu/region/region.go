// Package region is how an engine describes device memory to the daemon: a small JSON text in a sealed memfd, in
// place of the shared memory that an engine on a CPU passes. Handles of CUDA are neither file descriptors nor do they
// say how large they are or which device they are on.
package region

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrDescription means that a description is not one, or says what cannot be.
var ErrDescription = errors.New("no description of device memory")

// Version of the format. A description of another version is refused.
const Version = 1

// Bounds of a description, checked before anything is allocated for it.
const (
	// MaxBytes of text. 8,192 parts of about 60 bytes, or 2,000 with a legacy handle, fit.
	MaxBytes = 1 << 20
	// MaxParts of a region: expandable segments have 3,584 parts for 70 GiB.
	MaxParts = 8192
	// MaxRegionBytes is above the memory of any device.
	MaxRegionBytes = 1 << 42
	handleBytes    = 64
)

// Kind is how memory is shared.
type Kind string

// Kinds of memory.
const (
	// IPC is memory of cuMemAlloc, named by a legacy handle (cuIpcGetMemHandle).
	IPC Kind = "ipc"
	// VMM is memory of cuMemCreate, exported as POSIX descriptors.
	VMM Kind = "vmm"
)

// Description is one region of an engine's memory on one device.
type Description struct {
	// Format is [Version].
	Format int `json:"kvconn_region"`
	// Device is the UUID of the GPU, as nvidia-smi prints it. Ordinals differ between processes.
	Device string `json:"device"`
	Kind   Kind   `json:"kind"`
	// Parts are allocations that lie end to end in the engine's addresses.
	Parts []Part `json:"parts"`
}

// Part is one allocation, or a stretch of one.
type Part struct {
	// Bytes of the region that lie in this allocation.
	Bytes int64 `json:"bytes"`
	// Handle is the 64 bytes of a legacy handle, which names a whole allocation; the region's bytes begin at Offset
	// in it. AllocationBytes is how large it is.
	Handle          []byte `json:"handle,omitempty"`
	Offset          int64  `json:"offset,omitempty"`
	AllocationBytes int64  `json:"allocation_bytes"`
	// Export is the number of the descriptor in the stream of exports, from 0.
	Export int `json:"export,omitempty"`
}

// Bytes is the size of the region.
func (d *Description) Bytes() int64 {
	var n int64
	for i := range d.Parts {
		n += d.Parts[i].Bytes
	}
	return n
}

// Is reports whether an engine passed a description and not memory: only a description is sealed against writing.
func Is(f *os.File) bool {
	seals, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0)
	return err == nil && seals&unix.F_SEAL_WRITE != 0
}

// IsStream reports whether f is the socket by which exports of VMM memory come.
func IsStream(f *os.File) bool {
	var st unix.Stat_t
	return unix.Fstat(int(f.Fd()), &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFSOCK
}

// Read reads and checks the description in a memfd. The text cannot change while it is read, since it is sealed.
func Read(f *os.File) (*Description, error) {
	if !Is(f) {
		return nil, fmt.Errorf("%w: it is not sealed against writing", ErrDescription)
	}
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("size of a description: %w", err)
	}
	if info.Size() <= 0 || info.Size() > MaxBytes {
		return nil, fmt.Errorf("%w: it has %d bytes, and 1 to %d are allowed", ErrDescription, info.Size(), MaxBytes)
	}
	text := make([]byte, info.Size())
	if _, err := f.ReadAt(text, 0); err != nil {
		return nil, fmt.Errorf("read a description: %w", err)
	}
	return Parse(text)
}

// Parse decodes and checks a description.
func Parse(text []byte) (*Description, error) {
	if len(text) > MaxBytes {
		return nil, fmt.Errorf("%w: %d bytes", ErrDescription, len(text))
	}
	d := new(Description)
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(d); err != nil {
		return nil, fmt.Errorf("%w: %.200s", ErrDescription, err.Error()) // it may quote all of the text
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w: more follows its end", ErrDescription)
	}
	if err := d.Validate(); err != nil {
		return nil, err
	}
	return d, nil
}

// Validate checks what can be checked without the device.
func (d *Description) Validate() error {
	switch {
	case d.Format != Version:
		return fmt.Errorf("%w: format %d, and this daemon knows %d", ErrDescription, d.Format, Version)
	case !isUUID(d.Device):
		return fmt.Errorf("%w: device %.60q", ErrDescription, d.Device)
	case d.Kind != IPC && d.Kind != VMM:
		return fmt.Errorf("%w: kind %.20q", ErrDescription, string(d.Kind))
	case len(d.Parts) == 0 || len(d.Parts) > MaxParts:
		return fmt.Errorf("%w: %d parts, and 1 to %d are allowed", ErrDescription, len(d.Parts), MaxParts)
	}
	var sum int64
	for i := range d.Parts {
		if err := d.Parts[i].validate(d.Kind); err != nil {
			return fmt.Errorf("%w: part %d: %w", ErrDescription, i, err)
		}
		if sum += d.Parts[i].Bytes; sum > MaxRegionBytes {
			return fmt.Errorf("%w: more than %d bytes", ErrDescription, int64(MaxRegionBytes))
		}
	}
	return nil
}

// isUUID reports whether s is a GPU's UUID in the form of nvidia-smi. It is written to logs and metrics, and to the command
// line of the GPU's copier.
func isUUID(s string) bool {
	const form = "GPU-00000000-0000-0000-0000-000000000000"
	if len(s) != len(form) {
		return false
	}
	for i := range len(s) {
		if form[i] == '0' && !strings.ContainsRune("0123456789abcdef", rune(s[i])) || form[i] != '0' && s[i] != form[i] {
			return false
		}
	}
	return true
}

func (p *Part) validate(k Kind) error {
	switch {
	case p.AllocationBytes <= 0 || p.AllocationBytes > MaxRegionBytes:
		return fmt.Errorf("an allocation of %d bytes", p.AllocationBytes)
	case p.Bytes <= 0 || p.Offset < 0 || p.Offset > p.AllocationBytes || p.Bytes > p.AllocationBytes-p.Offset:
		return fmt.Errorf("%d bytes from %d on, in an allocation of %d", p.Bytes, p.Offset, p.AllocationBytes)
	case k == IPC && len(p.Handle) != handleBytes:
		return fmt.Errorf("a handle of %d bytes", len(p.Handle))
	case k == VMM && len(p.Handle) != 0:
		return errors.New("a legacy handle of memory that has exports")
	case p.Export < 0 || p.Export >= MaxParts || k == IPC && p.Export != 0:
		return fmt.Errorf("export %d", p.Export)
	}
	return nil
}

// Seal writes a description to a memfd, as the engine's side does.
func Seal(d *Description) (*os.File, error) {
	text, err := json.Marshal(d)
	if err != nil {
		return nil, fmt.Errorf("describe device memory: %w", err)
	}
	fd, err := unix.MemfdCreate("kvconn-region", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("describe device memory: %w", err)
	}
	f := os.NewFile(uintptr(fd), "kvconn-region")
	if _, err = f.Write(text); err == nil {
		_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_WRITE|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("describe device memory: %w", err)
	}
	return f, nil
}
