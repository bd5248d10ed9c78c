package gpu

import (
	"os"

	"golang.org/x/sys/unix"
)

// populatePieceBytes is how much of a region is mapped at a time: the kernel takes a few milliseconds
// for it, in which the process maps nothing else and Close waits.
const populatePieceBytes = 16 << 20

// populate maps a region whose pages the engine has all made, beside the first copies, which would
// otherwise pay for the first touch of each page. Any other region is left alone: the pages that the
// engine has not touched would be made here, and be charged to this process.
func (m *hostMemory) populate(f *os.File, mem []byte) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Blocks*512 < int64(len(mem)) {
		return
	}
	m.populating.Go(func() {
		for at := 0; at < len(mem) && !m.closing.Load(); at += populatePieceBytes {
			piece := mem[at:min(at+populatePieceBytes, len(mem))]
			if unix.Madvise(piece, unix.MADV_POPULATE_WRITE) != nil {
				return // an old kernel, or the engine has truncated its memory: copies find out
			}
		}
	})
}
