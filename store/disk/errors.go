package disk

import "errors"

// Errors of opening a store, beside those of package store.
var (
	// ErrInUse says that another process has the directory open.
	ErrInUse = errors.New("store: directory is in use by another process")
	// ErrSegmentsMissing says that the store held records and none of its segment files is
	// there: most likely their file system is not mounted. See [Options].ForgetSegments.
	ErrSegmentsMissing = errors.New("store: segment files are missing")
	// ErrNewerFormat says that a newer version of the program made the directory.
	ErrNewerFormat = errors.New("store: directory has a newer format")
)
