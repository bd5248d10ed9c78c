package daemon

import (
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/storetest"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk"
)

const residencyTestPayload = storetest.SmallPayloadBytes

func residencyStore(t *testing.T, maxBytes int64) (*disk.Store, connector.NamespaceDigest) {
	t.Helper()
	return storetest.Small(t, maxBytes)
}

func residencyManifest() *connector.Manifest { return storetest.SmallManifest() }

func residencyChain(scope connector.Scope, prompt, n int) []connector.Key {
	return storetest.SmallChain(scope, prompt, n)
}

func residencySave(t *testing.T, s store.Writer, ns connector.NamespaceDigest, keys []connector.Key, shards ...connector.Shard) {
	t.Helper()
	storetest.SaveSmall(t, s, ns, keys, shards...)
}
