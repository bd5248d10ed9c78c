package host

import (
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
	return store.Speed{BytesPerS: a.meter.BytesPerS(), PerRank: true}
}

// Copied counts a copy of verified records into engine memory, for Speed.
func (a *Arena) Copied(bytes int, took time.Duration) { a.meter.Add(bytes, took) }

// FadeSpeed gives older copies less weight in Speed, once in a second at most. In times without
// copies they are forgotten within a minute.
func (a *Arena) FadeSpeed() { a.meter.FadeAt(time.Now()) }

// Usage is what the arena holds and may hold.
func (a *Arena) Usage() store.Usage {
	st := a.Stats()
	return store.Usage{Records: int64(st.Records), UsedBytes: st.CleanBytes, MaxBytes: st.Bytes, ReachableBytes: st.Bytes, Hits: st.Hits}
}
