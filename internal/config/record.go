package config

import "fmt"

// Record are the settings of the trace that is recorded, a part of [Serve].
type Record struct {
	RecordTrace            string `name:"record-trace" env:"KVCONN_RECORD_TRACE" placeholder:"FILE" help:"Record the engines' requests for 'kvconnd replay': times, lengths and hashes of blocks, no text and no tokens. Default: none."`
	RecordTraceBytes       Bytes  `name:"record-trace-bytes" env:"KVCONN_RECORD_TRACE_BYTES" default:"256MB" placeholder:"SIZE" help:"Size at which that file is begun again; the one before is kept as FILE.1 (default 256MB)."`
	RecordTraceBlockTokens int    `name:"record-trace-block-tokens" env:"KVCONN_RECORD_TRACE_BLOCK_TOKENS" default:"512" placeholder:"N" help:"Tokens that a hash stands for, a multiple of the engines' block size; replay takes it as --block-tokens (default 512)."`
}

// Bounds of the trace's settings: any line fits into a file, and any prompt into a block.
const (
	minRecordTraceBytes       = 16 << 20
	maxRecordTraceBlockTokens = 1 << 20
)

// validateRecord checks the settings of the trace.
func (s *Serve) validateRecord() error {
	switch {
	case s.RecordTrace == "":
		return nil
	case s.RecordTraceBytes < minRecordTraceBytes:
		return fmt.Errorf("record_trace_bytes is %s: at least %s", s.RecordTraceBytes, Bytes(minRecordTraceBytes))
	case s.RecordTraceBlockTokens < 1 || s.RecordTraceBlockTokens > maxRecordTraceBlockTokens:
		return fmt.Errorf("record_trace_block_tokens is %d: 1 to %d", s.RecordTraceBlockTokens, maxRecordTraceBlockTokens)
	}
	return nil
}
