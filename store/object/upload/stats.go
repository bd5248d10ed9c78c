package upload

// Stats is the state of an [Uploader] at one moment. The tags are those of package counters.
type Stats struct {
	// QueueBytes and QueueRecords wait to be uploaded.
	QueueBytes   int64 `json:"queue_bytes" metric:"queue_bytes" help:"Bytes of records that wait to be uploaded to the bucket."`
	QueueRecords int   `json:"queue_records" metric:"queue_records" help:"Records that wait to be uploaded to the bucket."`
	// Uploading objects are in memory. There are at most Limit, which falls while the bucket throttles.
	Uploading int `json:"uploading_objects"`
	Limit     int `json:"upload_limit"`
	// MemoryBytes are mapped for them.
	MemoryBytes int64 `json:"upload_memory_bytes"`
	// Paused says that the bucket is at its cap, or does not work, and uploads wait.
	Paused bool `json:"uploads_paused"`
	Counters
}

// Counters are the running totals of an [Uploader], in records but for Objects.
type Counters struct {
	// Uploaded are in the bucket, in Objects.
	Uploaded uint64 `json:"uploaded_records"`
	Objects  uint64 `json:"uploaded_objects"`
	// Dropped found no room in the queue, could not be read, or were refused.
	Dropped uint64 `json:"dropped_records" metric:"dropped_records_total" help:"Records that were not uploaded: the queue was full, or they could not be read or stored."`
	// Deduplicated were in the bucket already.
	Deduplicated uint64 `json:"deduplicated_records" metric:"deduplicated_records_total" help:"Records that were not uploaded because the bucket has them."`
	// Gone had left the first tier before they were read.
	Gone uint64 `json:"gone_records"`
	// Failed uploads of records are tried again.
	Failed uint64 `json:"failed_records"`
	// Snapshots were taken of the first tier.
	Snapshots uint64 `json:"snapshots"`

	abandoned int // records that failed while Close waited
}

// Stats returns the state of the uploader.
func (u *Uploader) Stats() Stats {
	u.mu.Lock()
	defer u.mu.Unlock()
	return Stats{
		QueueBytes: u.q.bytes, QueueRecords: u.q.records, Uploading: u.flying, Limit: u.limit,
		MemoryBytes: u.memory.mapped.Load(), Paused: u.full || u.down || u.failures > 0, Counters: u.count,
	}
}
