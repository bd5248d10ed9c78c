package daemon

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/client"
)

// An engine connects without waiting for the disk: also where its namespace cannot be kept,
// so that nothing of it can be saved for now.
func TestEngineConnectsWhereItsNamespaceCannotBeKept(t *testing.T) {
	r := start(t, nil)
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
	if err := c.Connect(t.Context()); err != nil {
		t.Error(err)
	}
	if err := os.Rename(kept+".away", kept); err != nil {
		t.Fatal(err)
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
