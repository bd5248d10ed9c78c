package tenantfile

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/kvconn/kvconn/internal/testkit/testlog"
	"github.com/kvconn/kvconn/internal/testkit/wait"
	"github.com/kvconn/kvconn/store/disk/quota"
)

func TestAFileIsReadAgainAndAWrongOneChangesNothing(t *testing.T) {
	dir := t.TempDir()
	entry := func(salt, more string) string {
		return fmt.Sprintf("  - {name: %s, digest: \"%v\"%s}\n", salt, of(salt), more)
	}
	path := write(t, dir, "tenants.yaml", "tenants:\n"+entry("a", "")+entry("b", ", max_bytes: 1GiB"))
	l, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	log, again, applied := new(testlog.Text), make(chan struct{}), make(chan quota.Limits)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		l.Run(ctx, again, func(l quota.Limits) { applied <- l }, slog.New(slog.NewTextHandler(log, nil)))
	}()
	write(t, dir, "tenants.yaml", "tenants:\n"+entry("c", "")+entry("b", ", max_bytes: 2GiB"))
	again <- struct{}{}
	if l := <-applied; l.Of(of("b")) != 2<<30 {
		t.Errorf("%+v", l)
	}
	wait.For(t, "a line about it", func() bool { return strings.Contains(log.String(), "tenants=2 added=1 removed=1 changed=1") })
	warnings := func() int { return strings.Count(log.String(), "level=WARN") }
	for i, text := range []string{"tenants:\n" + entry("a", ", max_bytes: 1"), "tenants: {", ""} {
		write(t, dir, "tenants.yaml", text)
		again <- struct{}{}
		wait.For(t, "a warning", func() bool { return warnings() == i+1 })
	}
	stop()
	<-ended
	if !strings.Contains(log.String(), "line 2") || !strings.Contains(log.String(), "file="+path) {
		t.Errorf("%s", log)
	}
	if f := l.File(); len(f.Tenants) != 2 || f.Tenants[0].Name != "c" {
		t.Errorf("%+v", f)
	}
}

func TestWithoutAFileThereIsNothingToReadAgain(t *testing.T) {
	var l *Live
	log, again := new(testlog.Text), make(chan struct{})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		l.Run(ctx, again, nil, slog.New(slog.NewTextHandler(log, nil)))
	}()
	again <- struct{}{}
	stop()
	<-ended
	if l.File() != nil || !strings.Contains(log.String(), "no tenants_file") {
		t.Errorf("%s", log)
	}
}

// A file system hangs while the file is read again: the daemon stops nevertheless, and nothing is applied after that.
func TestAFileThatCannotBeReadHoldsUpNoStop(t *testing.T) {
	l, err := Open(write(t, t.TempDir(), "tenants.yaml", "tenants: []\n"))
	if err != nil {
		t.Fatal(err)
	}
	reading, hung, left := make(chan struct{}), make(chan struct{}), make(chan struct{})
	l.load = func(string, bool) (*File, error) {
		defer close(left)
		close(reading)
		<-hung
		return new(File), nil
	}
	ctx, stop := context.WithCancel(t.Context())
	again, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		l.Run(ctx, again, func(quota.Limits) { t.Error("applied") }, slog.New(slog.DiscardHandler))
	}()
	again <- struct{}{}
	<-reading
	stop()
	<-ended
	close(hung)
	<-left
}
