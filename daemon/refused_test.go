package daemon

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/client"
	"github.com/kvconn/kvconn/internal/testlog"
)

// An engine whose namespace the store cannot keep is told so, as is the log, a few times
// however often it tries, and health; it is let in once the store can.
func TestEngineWhoseNamespaceCannotBeOpenedIsToldSo(t *testing.T) {
	var log testlog.Text
	r := start(t, func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	kept := filepath.Join(r.dir, "namespaces")
	if err := os.Rename(kept, kept+".away"); err != nil {
		t.Fatal(err)
	}
	c, err := client.NewScheduler(client.Options{Socket: r.Socket, Engine: "chat-0", Name: "test/1", Manifest: connector.Manifest{
		Engine: "test/1", Model: "org/model", KVDType: "bfloat16", BlockSize: 16, TensorParallel: 1, PipelineParallel: 1,
		Groups:    []connector.Group{{Layers: 1, KVHeads: 1, HeadSize: 8, Layout: "LBHNC"}},
		KeyScheme: connector.KeySchemeTokens, HashScheme: connector.HashScheme,
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	const tries = 20
	for range tries {
		err = c.Connect(t.Context())
		if err == nil || !strings.Contains(err.Error(), "org/model") || errors.Is(err, connector.ErrVersion) {
			t.Fatalf("connected: %v", err)
		}
	}
	const refused = `level=WARN msg="an engine was refused and goes on without cache"`
	eventually(t, func() bool {
		s := log.String()
		return strings.Contains(s, refused) && strings.Contains(s, "engine=chat-0 client=test/1") && strings.Contains(s, "file system full")
	})
	if n := strings.Count(log.String(), refused); n >= tries {
		t.Errorf("%d lines for %d tries:\n%s", n, tries, &log)
	}
	eventually(t, func() bool {
		code, body := r.get("/healthz")
		return code == 503 && strings.Contains(body, "engines_refused")
	})
	if err := os.Rename(kept+".away", kept); err != nil {
		t.Fatal(err)
	}
	if err := c.Connect(t.Context()); err != nil {
		t.Errorf("the store can, and still: %v", err)
	}
}

// eventually waits for what only a broken daemon does not do.
func eventually(t *testing.T, done func() bool) {
	t.Helper()
	for end := time.Now().Add(testWait); !done(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it does not happen")
		}
	}
}
