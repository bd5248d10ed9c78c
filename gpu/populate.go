package gpu

import (
	"context"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// populatePieceBytes is how much of a region is mapped at a time: the kernel takes a few milliseconds
// for it, in which the process maps nothing else and Close waits.
const populatePieceBytes = 16 << 20

// completionPause is how often it is asked whether an engine has made all pages of a region.
const completionPause = 250 * time.Millisecond

// populate maps a region once the engine has made all its pages, so that copies don't pay for the
// first touch of each page in this process. While pages are missing it is left alone: they would be
// made here, and be charged to this process.
func (m *hostMemory) populate(ctx context.Context, f *os.File, mem []byte) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return // it is an optimisation
	}
	m.populating.Go(func() {
		complete := awaitPages(ctx, fd, int64(len(mem)))
		_ = unix.Close(fd)
		for at := 0; complete && at < len(mem); at += populatePieceBytes {
			piece := mem[at:min(at+populatePieceBytes, len(mem))]
			if ctx.Err() != nil || unix.Madvise(piece, unix.MADV_POPULATE_WRITE) != nil {
				return // or an old kernel, or the engine has truncated its memory: copies find out
			}
		}
	})
}

// awaitPages waits until all pages of a region have been made, and reports whether they have before
// ctx ends.
func awaitPages(ctx context.Context, fd int, sizeBytes int64) bool {
	for {
		var st unix.Stat_t
		if unix.Fstat(fd, &st) != nil {
			return false
		}
		if st.Blocks*512 >= sizeBytes {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(completionPause):
		}
	}
}
