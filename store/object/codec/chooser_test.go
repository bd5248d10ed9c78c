package codec

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/seed"
)

const payloadBytes = 64 << 10

// shrinking is a payload: some tenths are zeros, the rest is noise that does not shrink.
func shrinking(t *testing.T, tenths int) []byte {
	t.Helper()
	random := seed.Random(t, tenths)
	b := make([]byte, payloadBytes)
	for at := payloadBytes * tenths / 10; at < payloadBytes-8; at += 8 {
		binary.LittleEndian.PutUint64(b[at:], random.Uint64())
	}
	return b
}

// put encodes a payload n times, and reports how often it became smaller.
func put(t *testing.T, c *Chooser, payload []byte, s connector.Shard, n int) (smaller int) {
	t.Helper()
	dst, got := make([]byte, 0, 2*payloadBytes), make([]byte, payloadBytes)
	for range n {
		encoded, ok := c.Encode(dst, payload, 2, connector.NamespaceDigest{1}, s)
		if !ok {
			if len(encoded) != 0 {
				t.Fatal("bytes of what was not encoded")
			}
			continue
		}
		smaller++
		if smaller == 1 {
			if err := c.codec.Decode(got, encoded); err != nil || !bytes.Equal(got, payload) {
				t.Fatal(err)
			}
		}
	}
	return smaller
}

func TestRecordsThatShrinkAreEncoded(t *testing.T) {
	c := NewChooser(newCodec(t, 1))
	if n := put(t, c, shrinking(t, 7), 1, 100); n != 100 {
		t.Errorf("%d of 100 records became smaller", n)
	}
	if !c.Pays(connector.NamespaceDigest{1}, 1) || c.Pays(connector.NamespaceDigest{1}, 2) || c.Pays(connector.NamespaceDigest{2}, 1) {
		t.Error("it pays elsewhere, or not here")
	}
}

// Records that shrink, but by less than 15%, are tried and then left alone.
func TestRecordsThatHardlyShrinkAreLeftAlone(t *testing.T) {
	c := NewChooser(newCodec(t, 1))
	if n := put(t, c, shrinking(t, 2), 1, 100); n != firstSamples {
		t.Errorf("%d of 100 records were encoded, want the first %d", n, firstSamples)
	}
	if c.Pays(connector.NamespaceDigest{1}, 1) {
		t.Error("it pays")
	}
	if n := put(t, c, shrinking(t, 7), 2, 10); n != 10 {
		t.Errorf("another shard: %d of 10", n)
	}
}

func TestOneBadRecordAmongMany(t *testing.T) {
	c := NewChooser(newCodec(t, 1))
	put(t, c, shrinking(t, 7), 1, 20)
	if n := put(t, c, shrinking(t, 0), 1, 5); n != 0 {
		t.Errorf("%d of 5 records of noise became smaller", n)
	}
	if n := put(t, c, shrinking(t, 7), 1, 20); n != 20 {
		t.Errorf("%d of 20 records after them became smaller", n)
	}
}

// What is stored changes: one record of 1,000 is measured, and the latest decide.
func TestTheDecisionIsMadeAgain(t *testing.T) {
	c := NewChooser(newCodec(t, 1))
	at := shard{connector.NamespaceDigest{1}, 1}
	pass := func(records, plain, encoded int) (tried, measured int) {
		for range records {
			encode, measure := c.next(at)
			if encode {
				tried++
			}
			if measure {
				measured++
				c.measured(at, plain, encoded)
			}
		}
		return tried, measured
	}
	if tried, measured := pass(1000, 100, 90); tried != firstSamples || measured != firstSamples {
		t.Errorf("%d of the first 1000 tried, %d measured", tried, measured)
	}
	// Of the 8 latest samples 4 shrink by 20% now, and 4 by 10%: with the record 4,000 it begins to pay.
	if tried, measured := pass(6*1000, 100, 80); measured != 6 || tried != 4+2999 {
		t.Errorf("%d of 6000 tried, %d measured", tried, measured)
	}
	if tried, _ := pass(2000, 100, 80); tried != 2000 {
		t.Errorf("%d of 2000 tried that pay", tried)
	}
	if pass(8*1000, 100, 100); c.Pays(at.namespace, at.shard) {
		t.Error("it still pays, and nothing shrinks")
	}
}

func TestWhatAChooserRemembersIsBounded(t *testing.T) {
	c := NewChooser(newCodec(t, 1))
	for i := range maxShards {
		c.next(shard{connector.NamespaceDigest{byte(i), byte(i >> 8)}, 0})
	}
	if encode, measure := c.next(shard{connector.NamespaceDigest{1}, 1}); encode || measure || len(c.shards) != maxShards {
		t.Errorf("%d shards", len(c.shards))
	}
	if encode, _ := c.next(shard{connector.NamespaceDigest{1}, 0}); !encode {
		t.Error("a shard that is known is no longer tried")
	}
}

func TestUnknownWidths(t *testing.T) {
	c := NewChooser(newCodec(t, 1))
	if _, smaller := c.Encode(nil, make([]byte, payloadBytes), 0, connector.NamespaceDigest{}, 0); smaller || len(c.shards) != 0 {
		t.Error("a payload of elements that are not known was encoded")
	}
}
