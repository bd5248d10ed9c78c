package disk

import (
	"time"

	"github.com/kvconn/kvconn/store/disk/fsio"
)

const (
	// openTries is how often a step of an opening is tried before its error counts, openPause
	// the time between two tries.
	openTries = 4
	openPause = 50 * time.Millisecond
)

// again tries a step of an opening until it works, a few times: what fails may pass, and an
// error that counts may cost a start, or records until the next. A file that is not there
// does not come.
func again(step func() error) (err error) {
	for try := range openTries {
		if try > 0 {
			time.Sleep(openPause)
		}
		if err = step(); err == nil || fsio.IsNotExist(err) {
			break
		}
	}
	return err
}
