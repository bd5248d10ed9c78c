package fsio

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// tries is how often [Again] tries a step, pause the time between two tries.
	tries = 4
	pause = 50 * time.Millisecond
)

// Again tries a step of an opening until it works, a few times: a failure may pass, and an
// error that counts may cost a start, or records until the next. It does not wait for a file
// that is not there.
func Again(step func() error) (err error) {
	for try := range tries {
		if try > 0 {
			time.Sleep(pause)
		}
		if err = step(); err == nil || IsNotExist(err) {
			break
		}
	}
	return err
}

// Sleep waits for d, or until ctx ends.
func Sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// OfMedium reports whether an error speaks of the place that was read or written, not of
// space, descriptors or memory.
func OfMedium(err error) bool {
	return errors.Is(err, unix.EIO) || errors.Is(err, unix.ENODATA) || errors.Is(err, unix.EREMOTEIO) || errors.Is(err, unix.EILSEQ)
}
