package daemon

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/kvconn/kvconn/connector/client"
	"github.com/kvconn/kvconn/internal/testkit/manifests"
)

// An engine connects without waiting for the disk: also where its namespace cannot be kept,
// so that nothing of it can be saved for now.
func TestEngineConnectsWhereItsNamespaceCannotBeKept(t *testing.T) {
	r := start(t, nil)
	kept := filepath.Join(r.dir, "namespaces")
	if err := os.Rename(kept, kept+".away"); err != nil {
		t.Fatal(err)
	}
	c, err := client.NewScheduler(client.Options{Socket: r.Socket, Engine: "chat-0", Name: "test/1", Manifest: *manifests.Model("org/model")})
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
