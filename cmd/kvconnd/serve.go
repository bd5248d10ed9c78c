package main

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/kvconn/kvconn/config"
	"github.com/kvconn/kvconn/daemon"
)

// serveCmd is `kvconnd serve`.
type serveCmd struct {
	Config configFile `name:"config" placeholder:"FILE" help:"YAML file of these settings (also: KVCONN_CONFIG). Flags and environment go before it."`
	config.Serve
}

// Help is shown below the command's summary.
func (*serveCmd) Help() string {
	return `Engines connect to the socket once it is there; "kvconnd config vllm" prints what
they need to be told. SIGTERM or SIGINT stops the daemon in order; a second one at once.`
}

// Run serves until the context ends.
func (c *serveCmd) Run(ctx context.Context, std *streams) error {
	if err := c.Validate(); err != nil {
		return fmt.Errorf("settings: %w", err)
	}
	if c.Socket == "" {
		c.Socket = config.DefaultSocket()
	}
	o := daemon.Options{
		Dir: c.Dir, Socket: c.Socket, HTTP: c.HTTP, MaxBytes: int64(c.MaxBytes), LoadTimeout: c.LoadTimeout,
		LoadStagingBytes: int64(c.LoadStagingBytes), SaveStagingBytes: int64(c.SaveStagingBytes),
		ScrubBytesPerS: int64(c.ScrubBytesPerS), MinOfferTokens: c.MinOfferTokens, Logger: newLogger(std, c.LogLevel, c.LogFormat),
	}
	if o.HTTP == "off" {
		o.HTTP = ""
	}
	return daemon.Run(ctx, o)
}

// newLogger logs to standard error.
func newLogger(std *streams, level, format string) *slog.Logger {
	var l slog.Level
	_ = l.UnmarshalText([]byte(level)) // the parser has checked it
	o := &slog.HandlerOptions{Level: l}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(std.err, o))
	}
	return slog.New(slog.NewTextHandler(std.err, o))
}
