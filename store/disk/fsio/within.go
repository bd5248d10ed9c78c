package fsio

import (
	"errors"
	"fmt"
	"time"
)

// ErrNoAnswer says that the disk has not answered in time.
var ErrNoAnswer = errors.New("the disk has not answered")

// Within returns what f returns, or [ErrNoAnswer] if f has not returned after wait. f goes on then.
func Within(wait time.Duration, f func() error) error {
	ended := make(chan error, 1)
	go func() { ended <- f() }()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case err := <-ended:
		return err
	case <-timer.C:
		return fmt.Errorf("%w for %v", ErrNoAnswer, wait)
	}
}
