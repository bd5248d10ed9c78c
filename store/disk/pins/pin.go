// Package pins keeps records that an administrator has pinned from being evicted, for a time.
package pins

import (
	"errors"
	"fmt"
	"time"

	"github.com/kvconn/kvconn/connector"
)

// Pin is what keeps records of one namespace until a time. It never changes.
type Pin struct {
	// ID names it, within one store.
	ID        string
	Namespace connector.NamespaceDigest
	// Shards and Keys are those of a prompt's blocks. Without keys all records of the namespace are pinned that were there:
	// those with sequence numbers up to UpTo.
	Shards []connector.Shard
	Keys   []connector.Key
	UpTo   uint64
	// Records and Bytes of payloads were found when it was made.
	Records, Bytes int64
	Made, Until    time.Time
}

// Bounds of what is pinned: the file that keeps pins stays a few megabytes.
const (
	maxPins      = 1024
	maxKeys      = 1 << 18
	maxShards    = 1 << 16
	maxFileBytes = 64 << 20
	// MaxTime is the longest time of a pin.
	MaxTime = 31 * 24 * time.Hour
)

// Errors of [Pins.Add].
var (
	// ErrFull says that more would be pinned than may be.
	ErrFull = errors.New("more would be pinned than may be")
	// ErrNothing says that there is no record to pin.
	ErrNothing = errors.New("there is no record to pin")
	// ErrUnknown says that there is no pin of that name.
	ErrUnknown = errors.New("there is no such pin")
)

// check reports why pins can't be kept together.
func check(list []Pin) error {
	keys := 0
	for i := range list {
		p := &list[i]
		if keys += len(p.Keys); len(p.Shards) > maxShards {
			return fmt.Errorf("a pin has %d shards, at most %d", len(p.Shards), maxShards)
		}
	}
	if len(list) > maxPins || keys > maxKeys {
		return fmt.Errorf("%d pins of %d blocks: at most %d of %d: %w", len(list), keys, maxPins, maxKeys, ErrFull)
	}
	return nil
}

// without returns the pins of a list that drop does not choose, and those that it does.
func without(list []Pin, drop func(*Pin) bool) (left, dropped []Pin) {
	for i := range list {
		if drop(&list[i]) {
			dropped = append(dropped, list[i])
		} else {
			left = append(left, list[i])
		}
	}
	return left, dropped
}
