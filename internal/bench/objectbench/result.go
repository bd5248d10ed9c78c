package objectbench

// Result is what [Run] measured. Times and rates are medians of rounds, ratios the medians of each round's
// ratio.
type Result struct {
	// Server is [OtherProcess], [ThisProcess] or [GivenBucket].
	Server      string `json:"server"`
	BlockBytes  int    `json:"block_bytes"`
	RoundBytes  int64  `json:"round_bytes"`
	Rounds      int    `json:"rounds"`
	Connections int    `json:"connections"`
	Uploads     int    `json:"uploads"`
	// LinkBytesPerS is what the server's connections share in each direction; 0 is no limit.
	LinkBytesPerS int64 `json:"link_bytes_per_s"`

	// FetchRatio and UploadRatio are those of plain records.
	FetchRatio  float64 `json:"fetch_ratio"`
	UploadRatio float64 `json:"upload_ratio"`
	// FetchCopied is the fetch of plain records that are copied to an engine's memory after that.
	FetchCopied Pair `json:"fetch_copied"`
	// Forms are plain, sealed and compressed records, and those that are both.
	Forms    []Form   `json:"forms"`
	Requests Requests `json:"requests"`

	LookupResult
	JoinResult
}

// Where the server is.
const (
	OtherProcess = "in memory, another process"
	ThisProcess  = "in memory, this process"
	GivenBucket  = "a bucket"
)

// Form is how records are stored, and what that costs.
type Form struct {
	Name string `json:"name"`
	// StoredRatio is bytes of objects ÷ bytes of payloads.
	StoredRatio float64 `json:"stored_ratio"`
	// Upload is building objects and putting them, Fetch reading and verifying records.
	Upload Pair `json:"upload"`
	Fetch  Pair `json:"fetch"`
	// Hedges are requests that fetching repeated because an answer was late.
	Hedges uint64 `json:"hedges"`
}

// Pair is something beside the same requests with the library alone. Bytes are those of payloads, in both.
type Pair struct {
	RawBytesPerS  float64 `json:"raw_bytes_per_s"`
	BytesPerS     float64 `json:"bytes_per_s"`
	Ratio         float64 `json:"ratio"`
	RawCPUSPerGiB float64 `json:"raw_cpu_s_per_gib"`
	CPUSPerGiB    float64 `json:"cpu_s_per_gib"`
}

// Requests are those that plain records took, as a provider bills them: objects alone, without lists.
type Requests struct {
	PutsPerGiB  float64 `json:"puts_per_gib"`
	PutsPer8MiB float64 `json:"puts_per_8mib"`
	GetsPerGiB  float64 `json:"gets_per_gib"`
	GetsPer8MiB float64 `json:"gets_per_8mib"`
	// GetsPerRange are GETs for each stretch of an object that was wanted.
	GetsPerRange float64 `json:"gets_per_range"`
}

// LookupResult is the look-up of chains of [Result].Chain keys that are all there, in the catalog and in the
// disk tier's index in turn, pins included.
type LookupResult struct {
	Records              int     `json:"records"`
	Chain                int     `json:"chain"`
	LookupSeconds        float64 `json:"lookup_s"`
	LookupP99Seconds     float64 `json:"lookup_p99_s"`
	DiskLookupSeconds    float64 `json:"disk_lookup_s"`
	DiskLookupP99Seconds float64 `json:"disk_lookup_p99_s"`
	LookupRatio          float64 `json:"lookup_ratio"`
	// LookupRequests came to the server meanwhile; of a bucket they are those that this process sent.
	LookupRequests uint64 `json:"lookup_requests"`
}

// JoinResult is a new node's reading of what is in the bucket: head and parts, until its catalog has all.
type JoinResult struct {
	JoinSeconds    float64 `json:"join_s"`
	JoinCPUSeconds float64 `json:"join_cpu_s"`
	JoinRequests   uint64  `json:"join_requests"`
	Parts          int     `json:"parts"`
	// BytesPerRecord is the catalog's memory, ListBytesPerRecord what the parts take in the bucket.
	BytesPerRecord     float64 `json:"bytes_per_record"`
	ListBytesPerRecord float64 `json:"list_bytes_per_record"`
}
