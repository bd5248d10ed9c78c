package recovery

// Names within a store's directory.
const (
	lockFile     = "LOCK"
	FormatFile   = "FORMAT"
	SnapshotFile = "index.snap"
	StampFile    = "STAMP"
	JournalDir   = "index"
	SegmentDir   = "segments"
	NamespaceDir = "namespaces"

	// Files in SegmentDir that are there for a moment at the start.
	probeFile          = "probe"
	CalibrationScratch = "calibration"
	CalibrationFile    = "CALIBRATION"
)
