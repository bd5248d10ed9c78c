package enginetest

import (
	"context"
	"encoding/binary"
	"log/slog"
	"net"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/tinylib/msgp/msgp"

	"github.com/kvconn/kvconn/internal/zmtp"
)

// Publisher publishes the KV cache events of one data-parallel rank in vLLM's form.
type Publisher struct {
	BlockSize int

	t    testing.TB
	pub  *zmtp.Publisher
	rank int
	seq  atomic.Uint64
}

// Publish starts the publishers of the ranks, on ports in a row, and returns the endpoint of the
// first. They end with the test.
func Publish(t testing.TB, ranks, blockSize int) (endpoint string, list []*Publisher) {
	t.Helper()
	for _, l := range listeners(t, ranks) {
		pub := zmtp.NewPublisher(l, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = pub.Run(ctx) // ends with ctx
		}()
		t.Cleanup(func() {
			cancel()
			<-done
		})
		list = append(list, &Publisher{BlockSize: blockSize, t: t, pub: pub, rank: len(list)})
	}
	return "tcp://" + list[0].pub.Addr().String(), list
}

// listeners are on consecutive ports.
func listeners(t testing.TB, n int) []net.Listener {
	t.Helper()
	for range 100 {
		first, err := zmtp.Listen(context.Background(), "tcp://127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		list := []net.Listener{first}
		port := first.Addr().(*net.TCPAddr).Port
		for i := 1; i < n; i++ {
			l, err := zmtp.Listen(context.Background(), "tcp://127.0.0.1:"+strconv.Itoa(port+i))
			if err != nil {
				break
			}
			list = append(list, l)
		}
		if len(list) == n {
			return list
		}
		for _, l := range list {
			_ = l.Close()
		}
	}
	t.Fatal("no ports in a row")
	return nil
}

// Subscribers is how many follow the events.
func (p *Publisher) Subscribers() int { return p.pub.Stats().Subscribers }

// Store publishes that the full blocks of tokens are cached.
func (p *Publisher) Store(tokens []uint32) {
	n := len(tokens) / p.BlockSize
	b := msgp.AppendMapHeader(nil, 6)
	b = msgp.AppendString(msgp.AppendString(b, "type"), "BlockStored")
	b = msgp.AppendArrayHeader(msgp.AppendString(b, "block_hashes"), uint32(n))
	for i := range n {
		b = msgp.AppendUint64(b, name(tokens[:(i+1)*p.BlockSize]))
	}
	b = msgp.AppendNil(msgp.AppendString(b, "parent_block_hash"))
	b = msgp.AppendArrayHeader(msgp.AppendString(b, "token_ids"), uint32(n*p.BlockSize))
	for _, t := range tokens[:n*p.BlockSize] {
		b = msgp.AppendUint32(b, t)
	}
	b = msgp.AppendInt(msgp.AppendString(b, "block_size"), p.BlockSize)
	b = msgp.AppendString(msgp.AppendString(b, "medium"), "GPU")
	p.send(b)
}

// name is an engine's hash of a prefix; any will do.
func name(tokens []uint32) uint64 {
	h := uint64(14695981039346656037)
	for _, t := range tokens {
		h = (h ^ uint64(t)) * 1099511628211
	}
	return h
}

// Clear publishes that the cache is empty.
func (p *Publisher) Clear() {
	b := msgp.AppendMapHeader(nil, 1)
	p.send(msgp.AppendString(msgp.AppendString(b, "type"), "AllBlocksCleared"))
}

// send publishes one event.
func (p *Publisher) send(event []byte) {
	b := msgp.AppendArrayHeader(nil, 3)
	b = msgp.AppendArrayHeader(msgp.AppendFloat64(b, 1.5), 1)
	b = msgp.AppendInt(append(b, event...), p.rank)
	var seq [8]byte
	binary.BigEndian.PutUint64(seq[:], p.seq.Add(1)-1)
	p.pub.Publish(nil, seq[:], b)
}
