package daemon

import (
	"fmt"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/server"
	"github.com/kvconn/kvconn/internal/tracelog"
	"github.com/kvconn/kvconn/leader"
)

// openRecord begins the trace, if one is to be recorded.
func (d *daemon) openRecord() (err error) {
	if d.opts.Record == nil {
		return nil
	}
	o := *d.opts.Record
	o.Logger = d.opts.Logger
	if d.record, err = tracelog.Open(o); err != nil {
		return fmt.Errorf("%w; set record_trace to a file that this user may write", err)
	}
	d.opts.Logger.Info("requests are recorded: times, lengths and hashes, no text", "file", absolute(o.Path))
	return nil
}

// closeRecord ends the trace. A file that cannot be written is no reason for a stop to fail.
func (d *daemon) closeRecord() {
	if d.record == nil {
		return
	}
	if err := d.record.Close(); err != nil {
		d.opts.Logger.Warn("the end of the trace may be missing", "err", err, "remedy", "look at its file system")
	}
}

// recordTo records the requests of an engine, if they are to be and can be.
func (b *backend) recordTo(o *leader.Options, p server.Peer) {
	if b.record == nil {
		return
	}
	why, remedy := "it brings its own keys and does not tell whole prompts", "none: only engines whose tokens are hashed here are recorded"
	if o.Manifest.KeyScheme != connector.KeySchemeEngine {
		e, err := b.record.Engine(o.Namespace, o.Manifest.BlockSize)
		if err == nil {
			o.Arrived, o.Ended = e.Arrived, e.Ended
			return
		}
		why, remedy = err.Error(), "set record_trace_block_tokens to a multiple of the engine's block size"
	}
	b.opts.Logger.Warn("the requests of an engine are not recorded", "engine", p.Engine, "client", p.Client, "why", why, "remedy", remedy)
}

// recorded are the trace's counters, nil if none is recorded.
func (d *daemon) recorded() *tracelog.Stats {
	if d.record == nil {
		return nil
	}
	s := d.record.Stats()
	return &s
}
