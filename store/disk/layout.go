package disk

import "time"

// Names within a store's directory.
const (
	lockFile     = "LOCK"
	formatFile   = "FORMAT"
	snapshotFile = "index.snap"
	stampFile    = "STAMP"
	journalDir   = "index"
	segmentDir   = "segments"
	namespaceDir = "namespaces"

	// Files in segmentDir that are there for a moment at the start.
	probeFile          = "probe"
	calibrationScratch = "calibration"
)

// janitorInterval is how often leases that ran out are looked for.
const janitorInterval = 100 * time.Millisecond
