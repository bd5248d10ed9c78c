package publish

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/storetest"
	"github.com/kvconn/kvconn/internal/testkit/wait"
	"github.com/kvconn/kvconn/internal/testkit/zmqtest"
	"github.com/kvconn/kvconn/store"
)

// Blocks come and, under a small cap, go, before and after the publisher begins.
func TestWhatIsPublishedIsWhatIsThere(t *testing.T) {
	s, ns := openStore(t)
	save(t, s, ns, 0, 600, 0, 1)
	p := run(t, Options{Topic: "kv"}, s)
	save(t, s, ns, 1000, 1600, 0, 1)
	save(t, s, ns, 3000, 3005, 1) // never complete
	want := make(map[uint64]bool)
	same := func() bool {
		clear(want)
		for _, from := range []int{0, 1000, 3000} {
			for n := from; n < from+600; n++ {
				k := keyOf(n)
				if storetest.Has(s, store.RecordID{Namespace: ns, Shard: 0, Key: k}) && storetest.Has(s, store.RecordID{Namespace: ns, Shard: 1, Key: k}) {
					want[binary.BigEndian.Uint64(k[:])] = true
				}
			}
		}
		got := replay(t, p).hashes
		for k := range want {
			if !got[k] {
				return false
			}
		}
		return len(got) == len(want)
	}
	wait.For(t, "the blocks that are there", same)
	if len(want) == 0 || len(want) == 1200 {
		t.Errorf("%d blocks: nothing was evicted, or all", len(want))
	}
}

func TestHashesHaveTheFormThatWasAskedFor(t *testing.T) {
	k := keyOf(5)
	for form, want := range map[HashForm]string{
		HashUint64: "cf" + hex.EncodeToString(k[:8]),
		HashInt64:  "d3" + hex.EncodeToString(k[:8]),
		HashBytes:  "c410" + hex.EncodeToString(k[:]),
	} {
		e := batch{form: form, now: func() time.Time { return time.Unix(1757500000, 250000000) }}
		got := hex.EncodeToString(e.removed([]connector.Key{k}))
		if want := "93cb41da3054981000009183a474797065ac426c6f636b52656d6f766564ac626c6f636b5f68617368657391" + want +
			"a66d656469756da753544f5241474500"; got != want {
			t.Errorf("%s: %s\nwant %s", form, got, want)
		}
	}
}

func TestLibzmqReadsWhatIsPublished(t *testing.T) {
	s, ns := openStore(t)
	p := run(t, Options{Topic: "kv", Hashes: HashBytes}, s)
	sub := zmqtest.Start(t, "../../../internal/zmtp/testdata/libzmq_sub.py", "sub", p.Stats().Endpoint, "kv")
	sub.Line()
	wait.For(t, "a subscriber", func() bool { return p.Stats().Subscribers > 0 })
	// The subscription may take effect after the connection: save until something arrives.
	lines := make(chan []string, 1)
	go func() { lines <- sub.Line() }()
	n := 0
	wait.For(t, "a line", func() bool {
		save(t, s, ns, n, n+1, 0, 1)
		n++
		return len(lines) > 0
	})
	got := <-lines
	if len(got) != 3 || got[0] != hex.EncodeToString([]byte("kv")) || len(got[1]) != 16 {
		t.Fatalf("%q", got)
	}
	text := fmt.Sprintf("%x", "block_hashes") + "91c410" // one hash of 16 bytes
	if !strings.Contains(got[2], text) || !strings.Contains(got[2], fmt.Sprintf("%x", "BlockStored")) {
		t.Errorf("%s", got[2])
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for name, o := range map[string]Options{
		"no endpoint":        {},
		"an unknown form":    {Endpoint: "tcp://*:5557", Hashes: "sha1"},
		"a negative pause":   {Endpoint: "tcp://*:5557", Retry: -1},
		"no port for replay": {Endpoint: "tcp://*:5557", ReplayEndpoint: "tcp://h"},
	} {
		if _, err := New(t.Context(), o, nil); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
