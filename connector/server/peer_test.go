package server

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

// A process in another PID namespace, as every container has, is number 0 for the daemon: that is nobody's number.
func TestTheLogLeavesOutProcessesThatItCannotSee(t *testing.T) {
	for pid, want := range map[int]string{0: "msg=x client=c\n", 42: "msg=x pid=42 client=c\n"} {
		var out bytes.Buffer
		log := slog.New(slog.NewTextHandler(&out, nil))
		peer := Peer{PID: pid, Client: "c"}
		log.Info("x", peer.Process(), "client", peer.Client)
		if !strings.HasSuffix(out.String(), want) {
			t.Errorf("process %d: %q, want %q", pid, out.String(), want)
		}
	}
}
