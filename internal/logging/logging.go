// Package logging is how a command that runs for long logs: its lines, its last words, and what it does not end for.
package logging

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
)

// New returns a logger of lines to w, in the form text or json, from a level on. In JSON a duration is a number of seconds, and its key says so.
func New(w io.Writer, level, format string) *slog.Logger {
	var l slog.Level
	_ = l.UnmarshalText([]byte(level)) // a wrong one is info
	o := &slog.HandlerOptions{Level: l}
	if format == "json" {
		o.ReplaceAttr = func(_ []string, a slog.Attr) slog.Attr {
			if a.Value.Kind() == slog.KindDuration {
				return slog.Float64(a.Key+"_s", a.Value.Duration().Seconds())
			}
			return a
		}
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}

// loggedError is an error that the log has: it is not to be printed again.
type loggedError struct{ error }

func (e loggedError) Unwrap() error { return e.error }

// Last returns err, which a command that logs to w in the given form ends with. Where a program reads the log, err is a line
// of it like all others: see [Logged].
func Last(w io.Writer, format string, err error) error {
	if err == nil || format != "json" {
		return err
	}
	New(w, "info", format).Error("kvconnd has failed and ends", "err", err)
	return loggedError{err}
}

// Logged reports whether err is a line of the log already.
func Logged(err error) bool {
	var l loggedError
	return errors.As(err, &l)
}

// IgnoreHangups lets the process outlive its terminal until stop is called. There is nothing that a hangup could reload.
func IgnoreHangups(ctx context.Context, log *slog.Logger) (stop func()) {
	return OnHangups(ctx, func() { log.Info("a hangup (SIGHUP) is ignored: settings are read at a start, and SIGTERM stops") })
}

// OnHangups lets the process outlive its terminal until stop is called, and calls f for a hangup. Hangups that come while f runs count as one.
func OnHangups(ctx context.Context, f func()) (stop func()) {
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-hangups:
				f()
			case <-ctx.Done():
				return
			}
		}
	}()
	return func() {
		cancel()
		<-done
		signal.Stop(hangups)
	}
}
