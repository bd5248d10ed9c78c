package host

import (
	"sync"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
)

var _ store.Level = (*Arena)(nil)

// Name is host.
func (a *Arena) Name() string { return "host" }

// Present sets at[i] where a verified copy of the record of keys[i] is there, without counting as
// a use. A load may still find it gone.
func (a *Arena) Present(ns connector.NamespaceDigest, shard connector.Shard, keys []connector.Key, at []bool) {
	for len(keys) > 0 {
		n := min(len(keys), presentAtOnce)
		a.present(ns, shard, keys[:n], at)
		keys, at = keys[n:], at[n:]
	}
}

// presentAtOnce is how many records are looked for while loads wait for the lock: they may be in no
// cache of the processor.
const presentAtOnce = 256

func (a *Arena) present(ns connector.NamespaceDigest, shard connector.Shard, keys []connector.Key, at []bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	number, known := a.namespaces[ns]
	if !known {
		return
	}
	id := slotKey{ns: number, shard: shard}
	for i := range keys {
		id.key = keys[i]
		if s := a.find(a.index.hash(&id), &id); s != 0 && a.slot(s).state == slotClean {
			at[i] = true
		}
	}
}

// Speed is how fast workers lately copied from the arena, each on one goroutine.
func (a *Arena) Speed() store.Speed {
	return store.Speed{BytesPerS: a.meter.bytesPerS(), PerRank: true}
}

// Copied counts a copy of verified records into engine memory, for Speed.
func (a *Arena) Copied(bytes int, took time.Duration) { a.meter.add(bytes, took) }

// FadeSpeed gives older copies less weight in Speed, once in a second at most. In times without
// copies they are forgotten within a minute.
func (a *Arena) FadeSpeed() { a.meter.fadeAt(time.Now()) }

// Usage is what the arena holds and may hold.
func (a *Arena) Usage() store.Usage {
	st := a.Stats()
	return store.Usage{Records: int64(st.Records), UsedBytes: st.CleanBytes, MaxBytes: st.Bytes, ReachableBytes: st.Bytes, Hits: st.Hits}
}

// meter measures how fast blocks were lately copied between the arena and engine memory.
type meter struct {
	mu    sync.Mutex
	bytes float64
	took  time.Duration
	faded time.Time
}

const (
	// enoughBytes is what makes a measurement: less is noise.
	enoughBytes = 64 << 20
	// meterSpan is the time of copies that a measurement is of; what came before it fades.
	// Other work on the machine comes and goes in minutes, and loads copy a part of the time.
	meterSpan = 4 * time.Second
)

func (m *meter) add(bytes int, took time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.bytes += float64(bytes)
	if m.took += took; m.took > meterSpan {
		keep := float64(meterSpan) / float64(m.took)
		m.bytes, m.took = m.bytes*keep, meterSpan
	}
}

// fadeAt gives older copies less weight, once in a second at most.
func (m *meter) fadeAt(now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if now.Sub(m.faded) >= time.Second {
		const keep = 7. / 8
		m.faded = now
		m.bytes *= keep
		m.took = time.Duration(float64(m.took) * keep)
	}
}

// bytesPerS is what one goroutine copies in a second, 0 while too little was copied.
func (m *meter) bytesPerS() float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	// Copies that took half the span are slow ones, however little they brought.
	if m.took == 0 || m.bytes < enoughBytes && m.took < meterSpan/2 {
		return 0
	}
	return m.bytes / m.took.Seconds()
}
