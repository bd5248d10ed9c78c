package feed

import (
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/tinylib/msgp/msgp"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/seed"
	"github.com/kvconn/kvconn/internal/testkit/wait"
	"github.com/kvconn/kvconn/internal/zmtp"
	"github.com/kvconn/kvconn/router/blockkey"
)

// modelEngine holds blocks and publishes what comes and goes, in one process after another at the same endpoints.
type modelEngine struct {
	t              *testing.T
	rng            *rand.Rand
	events, replay string
	history        *zmtp.History
	pub            *zmtp.Publisher
	stop, stopPast func()
	clock          float64
	held           map[uint64][]uint64 // blocks, and the prompts that they end
	blocks         uint64
}

func (e *modelEngine) listen() {
	e.pub = zmtp.NewPublisher(listenAt(e.t, e.events), slog.New(slog.DiscardHandler))
	e.stop = background(e.t, e.pub.Run)
}

func (e *modelEngine) listenPast() {
	s := zmtp.NewReplayServer(listenAt(e.t, e.replay), e.history, slog.New(slog.DiscardHandler))
	e.stopPast = background(e.t, s.Run)
}

// batch publishes events, or loses them on the way, and returns their number.
func (e *modelEngine) batch(lost bool, events ...[]byte) (seq uint64) {
	e.clock++
	b := msgp.AppendFloat64(msgp.AppendArrayHeader(nil, 3), e.clock)
	b = msgp.AppendArrayHeader(b, uint32(len(events)))
	for _, event := range events {
		b = append(b, event...)
	}
	b = msgp.AppendInt(b, 0)
	seq = e.history.Append([]byte("kv"), b)
	if !lost {
		e.pub.Publish([]byte("kv"), seqFrame(seq), b)
	}
	return seq
}

// work has blocks come and go.
func (e *modelEngine) work(lost float64) {
	for range 1 + e.rng.IntN(5) {
		var events [][]byte
		for range 1 + e.rng.IntN(3) {
			all := slices.Sorted(maps.Keys(e.held))
			if len(all) > 0 && e.rng.IntN(3) == 0 {
				gone := all[e.rng.IntN(len(all))]
				delete(e.held, gone)
				events = append(events, removedEvent(gone))
				continue
			}
			var parent uint64
			if len(all) > 0 && e.rng.IntN(4) > 0 {
				parent = all[e.rng.IntN(len(all))]
			}
			e.blocks++
			e.held[e.blocks] = append(slices.Clone(e.held[parent]), e.blocks)
			events = append(events, storedEvent(parent, []uint64{e.blocks}))
		}
		e.batch(e.rng.Float64() < lost, events...)
	}
}

// trouble is something that happens to an engine or on the way to it.
func (e *modelEngine) trouble() {
	switch e.rng.IntN(5) {
	case 0: // another process, which may have published before anybody listens
		e.stop()
		e.stopPast()
		e.history, e.held = zmtp.NewHistory(), make(map[uint64][]uint64)
		if e.rng.IntN(2) == 0 {
			e.work(1)
		}
		e.listen()
		e.listenPast()
	case 1: // the connection is lost
		e.stop()
		if e.rng.IntN(2) == 0 {
			e.work(1)
		}
		e.listen()
	case 2: // there are no replays for a while, in which some are asked for
		e.stopPast()
		e.work(0.5)
		time.Sleep(time.Duration(e.rng.IntN(20)) * time.Millisecond)
		e.listenPast()
	case 3: // the same while the connection is lost
		e.stopPast()
		e.stop()
		e.work(1)
		e.listen()
		e.work(0.5)
		e.listenPast()
	default:
		e.work(0.5)
	}
}

// Whatever happens to an engine, in the end its rank has no block that the engine does not hold, and, with replays,
// every block that it holds.
func TestARankComesBackFromAnyTrouble(t *testing.T) {
	for _, s := range []blockkey.Scheme{blockkey.Tokens, blockkey.SGLang} {
		for name, replays := range map[string]bool{"with replays": true, "without": false} {
			t.Run(s.String()+" "+name, func(t *testing.T) { campaign(t, s, replays) })
		}
	}
}

func campaign(t *testing.T, scheme blockkey.Scheme, replays bool) {
	rng := seed.Random(t, 23)
	e := &modelEngine{
		t: t, rng: rng, events: closedEndpoint(t), replay: closedEndpoint(t), history: zmtp.NewHistory(), held: make(map[uint64][]uint64),
	}
	e.listen()
	e.listenPast()
	x := newMemIndex()
	o := (&ownEngine{pub: e.pub}).options()
	if o.Scheme = scheme; replays {
		o.ReplayEndpoint = e.replay
	}
	keysOfPrompt := sglangKeys
	if scheme == blockkey.Tokens {
		keysOfPrompt = func(blocks ...uint64) []connector.Key { return keysOf(connector.Scope{}, blocks...) }
	}
	f := follow(t, o, x)
	for range 60 {
		e.work(0.2)
		for range rng.IntN(4) {
			e.trouble()
		}
		want := make(map[connector.Key]bool)
		for _, prompt := range e.held {
			keys := keysOfPrompt(prompt...)
			want[keys[len(keys)-1]] = true
		}
		wait.For(t, "the blocks that the engine holds", func() bool {
			seq := e.batch(false)
			s, has := f.Stats(), x.keys(1)
			missing := len(want) - len(has)
			maps.DeleteFunc(has, func(k connector.Key, _ bool) bool { return want[k] })
			return s.LastSeq+10 > int64(seq) && len(has) == 0 && (!replays || s.State == StateSynced && missing == 0)
		})
	}
	if s := f.Stats(); s.Gaps == 0 || s.Connects < 10 || s.Resyncs == 0 || s.Malformed > 0 || replays && (s.Replays == 0 || s.Restarts == 0) {
		t.Errorf("%+v", s)
	}
}
