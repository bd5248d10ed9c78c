package calibrate

import (
	"encoding/json"
	"errors"
	"log/slog"
	"time"

	"github.com/kvconn/kvconn/store/disk/fsio"
)

const (
	// part is the part of a cap that the measurement may use for a moment.
	part = 4
	// slackBytes bounds what the file system adds to the file.
	slackBytes = 16 << 10
	// claimedBytes is what the measurement takes of the cap.
	claimedBytes = Bytes + slackBytes
)

// Fits reports whether a store with that cap has room for a measurement.
func Fits(maxBytes int64) bool { return maxBytes >= part*Bytes }

// Space is what the file of a measurement is counted in.
type Space interface {
	Claim(bytes int64) bool
	Unclaim(bytes int64)
	// Leave notes that a file could not be removed.
	Leave(path string, bytes int64)
}

// Options say where a calibration is kept, and how it is made.
type Options struct {
	FS fsio.FS
	// Path is the file that keeps the result, Scratch the one that is written and read for it.
	Path, Scratch string
	// ChunkBytes is the size of one request, Direct whether the file system has direct I/O.
	ChunkBytes int
	Direct     bool
	// Measure has the disk measured where no result is kept.
	Measure bool
	Space   Space
	Clock   func() time.Time
	Logger  *slog.Logger
}

// Result returns the result that is kept, or measures. It reports false if there is neither: a measurement that fails
// costs nothing but itself.
func (o *Options) Result() (Result, bool) {
	if c, ok := o.kept(); ok || !o.Measure {
		return c, ok
	}
	if !o.Space.Claim(claimedBytes) {
		o.Logger.Info("store: no room to measure the disk, defaults are used")
		return Result{}, false
	}
	c, err := o.measure()
	if err != nil {
		o.Logger.Warn("store: calibration failed, defaults are used", "err", err,
			"remedy", "look for I/O errors in the kernel's log, and for space in the file system of the store")
		return Result{}, false
	}
	b, err := json.MarshalIndent(c, "", "  ")
	if err == nil {
		err = o.FS.WriteFileAtomic(o.Path, append(b, '\n'))
	}
	if err != nil {
		o.Logger.Warn("store: calibration is not kept, the next start measures again", "err", err,
			"remedy", "free space in the file system of the store")
	}
	return c, true
}

func (o *Options) kept() (c Result, ok bool) {
	b, err := o.FS.ReadFile(o.Path)
	if err == nil {
		err = json.Unmarshal(b, &c)
	}
	return c, err == nil && c.ReadInFlightBytes >= int64(o.ChunkBytes) && c.WriteInFlightBytes >= int64(o.ChunkBytes)
}

// measure writes and reads a file of random content at growing depths. The room for it was claimed; it is given back
// when the file is gone.
func (o *Options) measure() (c Result, err error) {
	f, err := o.FS.OpenFile(o.Scratch, true, o.Direct)
	if err != nil {
		o.Space.Unclaim(claimedBytes)
		return c, err
	}
	defer func() {
		err = errors.Join(err, f.Close())
		removed := o.FS.Remove(o.Scratch)
		if removed != nil {
			o.Space.Leave(o.Scratch, claimedBytes)
			err = errors.Join(err, removed)
		} else {
			o.Space.Unclaim(claimedBytes)
		}
	}()
	c, err = Measure(f, o.ChunkBytes)
	c.At = o.Clock().UTC()
	return c, err
}
