package wire

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tinylib/msgp/msgp"

	"github.com/kvconn/kvconn/connector"
)

// codec is one body's way out and back.
type codec struct {
	name   string
	value  any
	encode func(b []byte) []byte
	decode func(b []byte) (any, error)
}

func codecs() []codec {
	hello := &Hello{MinVersion: 1, MaxVersion: 3, Role: RoleWorker, Client: "c/1", Engine: "e", Manifest: []byte("{}"), Rank: 5, Handoff: true}
	helloReply := &HelloReply{Version: 1, Server: "s", Namespace: strings.Repeat("ab", 32), LoadTimeoutMS: 10000}
	errBody := &ErrorBody{Code: CodeBadRequest, Message: "no"}
	match := &connector.MatchRequest{Request: "r", From: 3, Tokens: []uint32{1, 1 << 31}, PromptTokens: 5, Computed: 16, Spans: []connector.Span{{Start: 1, End: 4, ID: []byte("img")}}, Scope: connector.Scope{Salt: "s", LoRA: "l"}, NoLoad: true, NoSave: true, Tiers: true, Trace: "00-1-2-01"}
	offer := &connector.Offer{Tokens: 32, Async: true}
	told := corpusOffer()
	layout := &connector.Layout{Groups: []connector.GroupLayout{{Blocks: 9, Runs: []connector.Run{{Region: 1, Offset: 2, Layers: 3, LayerStride: 4, BlockStride: 5, Bytes: 6}}}, {Runs: []connector.Run{}}}}
	step := &connector.StepRequest{
		Allocs:    []connector.Alloc{{Request: "a", Blocks: [][]uint32{{1, 2}, {connector.NoBlock, 3}}, Computed: 16, External: 16, GroupComputed: []int{16, 0}}},
		Scheduled: []connector.Scheduled{{Request: "b", NewBlocks: [][]uint32{{3}}, Reset: true, Computed: 1, Count: 2, From: 9, NewTokens: []uint32{7}}},
		Preempted: []string{"c"}, Finished: []string{"d", "e"}, TellSaves: true,
		Adapters: []connector.Adapter{{Name: "tuned", LoRA: "lora-1:0a"}, {Name: "refused"}},
	}
	stepReply := &connector.StepReply{Metadata: []byte{1, 2}, Loads: []connector.PlannedLoad{{Request: "a", Blocks: []uint32{2}}}, Saves: []connector.PlannedSave{{Request: "b", Group: 1, First: 2, Count: 3}}}
	loaded := &connector.LoadedReport{Done: []string{"a"}, InvalidBlocks: []uint32{4}}
	saveResult := &connector.SaveResult{Taken: 3, Dropped: 1, Present: 2}
	polled := connector.Polled{
		Finished: []connector.FinishedLoad{{Request: "a", FailedBlocks: []uint32{1}}, {Request: "b"}},
		Stored:   []connector.StoredPut{{ID: "c", SaveResult: *saveResult}},
	}
	present := &connector.PresentRequest{Request: "r", First: 2, Parent: connector.Proof{7}, Hashes: []connector.Proof{{1}, {2}}, Held: 1, NoLoad: true}
	traced := *present
	traced.Trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	move := &connector.KeyedMove{ID: "m", Request: "r", Parts: []connector.KeyedPart{
		{Group: 1, Parent: connector.Proof{7}, Hashes: []connector.Proof{{1}, {2}}, Slots: []uint32{4, 5}},
		{Hashes: []connector.Proof{{3}}, Slots: []uint32{6}},
	}, Scope: connector.Scope{Salt: "s", LoRA: "l"}}
	waiting := *move
	waiting.Wait = 700 * time.Millisecond
	saveLater := connector.SaveRequest{ID: "s", Metadata: []byte{9}, Revoked: 1 << 63}
	fetched, put := corpusFetched(), corpusPut()
	channel := &Hello{MinVersion: 5, MaxVersion: 5, Role: RoleChannel, Client: "c/1", Engine: "e", Manifest: []byte{}, Session: []byte("0123456789abcdef")}
	session := &HelloReply{Version: 5, Server: "s", LoadTimeoutMS: 10000, Session: channel.Session}
	touch := &connector.TouchRequest{Request: "r", Hashes: []connector.Proof{{1}}, Tokens: 5, Seconds: 0.5}
	brought := connector.Polled{Finished: corpusLoads()}
	return []codec{
		{"hello", hello, hello.Append, func(b []byte) (any, error) { m := new(Hello); return m, m.Decode(b) }},
		{"hello reply", helloReply, helloReply.Append, func(b []byte) (any, error) { m := new(HelloReply); return m, m.Decode(b) }},
		{"hello of a channel", channel, channel.Append, func(b []byte) (any, error) { m := new(Hello); return m, m.Decode(b) }},
		{"hello reply with a session", session, session.Append, func(b []byte) (any, error) { m := new(HelloReply); return m, m.Decode(b) }},
		{"move that waits", &waiting, func(b []byte) []byte { return AppendMove(b, &waiting) }, func(b []byte) (any, error) { return new(MoveDecoder).Decode(b) }},
		{"fetched", fetched, func(b []byte) []byte { return AppendFetched(b, &fetched) }, func(b []byte) (any, error) { return DecodeFetched(b) }},
		{"put", put, func(b []byte) []byte { return AppendPut(b, &put) }, func(b []byte) (any, error) { return DecodePut(b) }},
		{"error", errBody, errBody.Append, func(b []byte) (any, error) { m := new(ErrorBody); return m, m.Decode(b) }},
		{"match", match, func(b []byte) []byte { return AppendMatch(b, match) }, func(b []byte) (any, error) { m := new(connector.MatchRequest); return m, DecodeMatch(b, m) }},
		{"offer", offer, func(b []byte) []byte { return AppendOffer(b, *offer) }, func(b []byte) (any, error) { m := new(connector.Offer); return m, DecodeOffer(b, m) }},
		{"offer with tiers", &told, func(b []byte) []byte { return AppendOffer(b, told) }, func(b []byte) (any, error) { m := new(connector.Offer); return m, DecodeOffer(b, m) }},
		{"layout", layout, func(b []byte) []byte { return AppendLayout(b, layout) }, func(b []byte) (any, error) { m := new(connector.Layout); return m, DecodeLayout(b, m) }},
		{"step", step, func(b []byte) []byte { return AppendStep(b, step) }, func(b []byte) (any, error) { return new(StepDecoder).Decode(b) }},
		{"step reply", stepReply, func(b []byte) []byte { return AppendStepReply(b, stepReply) }, func(b []byte) (any, error) { m := new(connector.StepReply); return m, DecodeStepReply(b, m) }},
		{"loaded", loaded, func(b []byte) []byte { return AppendLoaded(b, loaded) }, func(b []byte) (any, error) { m := new(connector.LoadedReport); return m, DecodeLoaded(b, m) }},
		{"meta", []byte{9}, func(b []byte) []byte { return AppendMeta(b, []byte{9}) }, func(b []byte) (any, error) { return DecodeMeta(b) }},
		{"save result", saveResult, func(b []byte) []byte { return AppendSaveResult(b, *saveResult) }, func(b []byte) (any, error) { m, _, err := DecodeSaveResult(b); return &m, err }},
		{"save", saveLater, func(b []byte) []byte { return AppendSave(b, &saveLater) }, func(b []byte) (any, error) { return DecodeSave(b) }},
		{"save later", true, AppendSaveLater, func(b []byte) (any, error) { _, later, err := DecodeSaveResult(b); return later, err }},
		{"present", present, func(b []byte) []byte { return AppendPresent(b, present) }, func(b []byte) (any, error) { m := new(connector.PresentRequest); return m, DecodePresent(b, m) }},
		{"present with a trace", &traced, func(b []byte) []byte { return AppendPresent(b, &traced) }, func(b []byte) (any, error) { m := new(connector.PresentRequest); return m, DecodePresent(b, m) }},
		{"presence", [][]byte{{1}, {2}}, func(b []byte) []byte { return AppendPresence(b, [][]byte{{1}, {2}}) }, func(b []byte) (any, error) { return DecodePresence(b) }},
		{"move", move, func(b []byte) []byte { return AppendMove(b, move) }, func(b []byte) (any, error) { return new(MoveDecoder).Decode(b) }},
		{"touch", touch, func(b []byte) []byte { return AppendTouch(b, touch) }, func(b []byte) (any, error) { m := new(connector.TouchRequest); return m, DecodeTouch(b, m) }},
		{"count", 7, func(b []byte) []byte { return AppendCount(b, 7) }, func(b []byte) (any, error) { return DecodeCount(b) }},
		{"cancel", "r", func(b []byte) []byte { return AppendCancel(b, "r") }, func(b []byte) (any, error) { return DecodeCancel(b) }},
		{"polled", polled, func(b []byte) []byte { return AppendPolled(b, &polled) }, func(b []byte) (any, error) { return DecodePolled(b) }},
		{"polled, and what loads brought", brought, func(b []byte) []byte { return AppendPolled(b, &brought) }, func(b []byte) (any, error) { return DecodePolled(b) }},
	}
}

func TestBodiesRoundTrip(t *testing.T) {
	for _, c := range codecs() {
		t.Run(c.name, func(t *testing.T) {
			got, err := c.decode(c.encode(nil))
			if err != nil || !reflect.DeepEqual(got, c.value) {
				t.Errorf("got %+v, %v; want %+v", got, err, c.value)
			}
		})
	}
}

func TestBodiesRefuseEveryTruncation(t *testing.T) {
	for _, c := range codecs() {
		b := c.encode(nil)
		for n := range b {
			if _, err := c.decode(b[:n]); !errors.Is(err, connector.ErrProtocol) {
				t.Fatalf("%s cut to %d of %d bytes: %v, want ErrProtocol", c.name, n, len(b), err)
			}
		}
		if _, err := c.decode(append(b, 0)); !errors.Is(err, connector.ErrProtocol) {
			t.Errorf("%s with a surplus byte: %v, want ErrProtocol", c.name, err)
		}
	}
}

// A newer client may send more than this version knows.
func TestBodiesSkipUnknownFields(t *testing.T) {
	for _, c := range codecs() {
		b := c.encode(nil)
		n, rest, err := msgp.ReadMapHeaderBytes(b)
		if err != nil {
			t.Fatal(err)
		}
		more := msgp.AppendMapHeader(nil, n+1)
		more = msgp.AppendString(more, "from the future")
		more = msgp.AppendMapStrStr(more, map[string]string{"a": "b"})
		got, err := c.decode(append(more, rest...))
		if err != nil || !reflect.DeepEqual(got, c.value) {
			t.Errorf("%s: got %+v, %v; want %+v", c.name, got, err, c.value)
		}
	}
}

// A few bytes must not make the decoder allocate gigabytes.
func TestHostileSizesAreRefusedBeforeAllocation(t *testing.T) {
	huge := func(key string, value ...byte) []byte {
		return append(msgp.AppendString(msgp.AppendMapHeader(nil, 1), key), value...)
	}
	for _, tc := range []struct {
		name   string
		body   []byte
		decode func([]byte) error
	}{
		{"tokens", huge("tokens", 0xc6, 0xff, 0xff, 0xff, 0xff), func(b []byte) error { return DecodeMatch(b, new(connector.MatchRequest)) }},
		{"request id", huge("r", 0xdb, 0xff, 0xff, 0xff, 0xff), func(b []byte) error { return DecodeMatch(b, new(connector.MatchRequest)) }},
		{"allocs", huge("allocs", 0xdd, 0xff, 0xff, 0xff, 0xff), func(b []byte) error { _, err := new(StepDecoder).Decode(b); return err }},
		{"finished", huge("finished", 0xdd, 0xff, 0xff, 0xff, 0xff), func(b []byte) error { _, err := new(StepDecoder).Decode(b); return err }},
		{"hashes", huge("hashes", 0xc6, 0xff, 0xff, 0xff, 0xff), func(b []byte) error { return DecodePresent(b, new(connector.PresentRequest)) }},
		{"parts", huge("parts", 0xdd, 0xff, 0xff, 0xff, 0xff), func(b []byte) error { _, err := new(MoveDecoder).Decode(b); return err }},
		{"bitmaps", huge("groups", 0xdd, 0xff, 0xff, 0xff, 0xff), func(b []byte) error { _, err := DecodePresence(b); return err }},
		{"stored", huge("stored", 0xdd, 0xff, 0xff, 0xff, 0xff), func(b []byte) error { _, err := DecodePolled(b); return err }},
		{"spans", huge("spans", 0xdd, 0xff, 0xff, 0xff, 0xff), func(b []byte) error { return DecodeMatch(b, new(connector.MatchRequest)) }},
		{"groups", huge("groups", 0xdd, 0xff, 0xff, 0xff, 0xff), func(b []byte) error { return DecodeLayout(b, new(connector.Layout)) }},
		{"loaded", huge("loaded", 0xdd, 0xff, 0xff, 0xff, 0xff), func(b []byte) error { _, err := DecodePolled(b); return err }},
		{"what loads brought without loads", huge("loaded", 0x91, 0x92, 0x00, 0x80), func(b []byte) error { _, err := DecodePolled(b); return err }},
		{"too many tiers", huge("tiers", 0x85, 0xa1, 'a', 1, 0xa1, 'b', 1, 0xa1, 'c', 1, 0xa1, 'd', 1, 0xa1, 'e', 1), func(b []byte) error { return DecodeOffer(b, new(connector.Offer)) }},
		{"saves", huge("saves", 0xdd, 0xff, 0xff, 0xff, 0xff), func(b []byte) error { return DecodeStepReply(b, new(connector.StepReply)) }},
		{"trace", huge("trace", append([]byte{0xd9, 56}, make([]byte, 56)...)...), func(b []byte) error { return DecodeMatch(b, new(connector.MatchRequest)) }},
		{"map", []byte{0xdf, 0xff, 0xff, 0xff, 0xff}, func(b []byte) error { return DecodeLoaded(b, new(connector.LoadedReport)) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var err error
			allocated := testing.AllocsPerRun(1, func() { err = tc.decode(tc.body) })
			if !errors.Is(err, connector.ErrProtocol) || allocated > 50 {
				t.Errorf("%v with %v allocations, want ErrProtocol with few", err, allocated)
			}
		})
	}
}

func FuzzBodies(f *testing.F) {
	for i, c := range codecs() {
		f.Add(uint8(i), c.encode(nil))
	}
	f.Fuzz(func(t *testing.T, which uint8, body []byte) {
		all := codecs()
		c := all[int(which)%len(all)]
		if _, err := c.decode(body); err != nil && !errors.Is(err, connector.ErrProtocol) {
			t.Errorf("%s: %v, want nil or ErrProtocol", c.name, err)
		}
	})
}

func FuzzParseHeader(f *testing.F) {
	var b [HeaderBytes]byte
	(&Header{Length: 5, ID: 1, Op: OpMatch, Epoch: 7}).put(b[:])
	f.Add(b[:])
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < HeaderBytes {
			return
		}
		h, err := ParseHeader(b)
		if err != nil {
			if !errors.Is(err, connector.ErrProtocol) {
				t.Errorf("%v, want ErrProtocol", err)
			}
			return
		}
		var again [HeaderBytes]byte
		h.put(again[:])
		if string(again[:]) != string(b[:HeaderBytes]) {
			t.Errorf("header %x becomes %x", b[:HeaderBytes], again)
		}
	})
}

func TestErrorsCrossTheWire(t *testing.T) {
	for _, want := range []error{connector.ErrProtocol, connector.ErrVersion, connector.ErrBadRequest, connector.ErrUnknownRequest, connector.ErrNotRegistered} {
		body := NewErrorBody(errors.Join(errors.New("context"), want))
		var got ErrorBody
		if err := got.Decode(body.Append(nil)); err != nil || !errors.Is(got.Err(), want) {
			t.Errorf("%v arrives as %v, %v", want, got.Err(), err)
		}
	}
	if body := NewErrorBody(errors.New("disk on fire")); body.Code != CodeInternal {
		t.Errorf("code %q for an unknown error, want %q", body.Code, CodeInternal)
	}
}

// A call that waits less than the protocol can say waits as little as it can say: it is not one that does not wait.
func TestShortWaitsAreWaits(t *testing.T) {
	for _, wait := range []time.Duration{1, time.Millisecond - 1, time.Millisecond} {
		m, err := new(MoveDecoder).Decode(AppendMove(nil, &connector.KeyedMove{ID: "m", Wait: wait}))
		if err != nil || m.Wait != time.Millisecond {
			t.Errorf("a wait of %v comes as one of %v, %v", wait, m.Wait, err)
		}
	}
}
