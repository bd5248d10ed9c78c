package recovery

// Names within a store's directory.
const (
	lockFile        = "LOCK"
	FormatFile      = "FORMAT"
	SnapshotFile    = "index.snap"
	StampFile       = "STAMP"
	CalibrationFile = "CALIBRATION"
	JournalDir      = "index"
	SegmentDir      = "segments"
	NamespaceDir    = "namespaces"

	// probeFile and CalibrationScratch are files in SegmentDir that are there for a moment at the
	// start.
	probeFile          = "probe"
	CalibrationScratch = "calibration"
)
