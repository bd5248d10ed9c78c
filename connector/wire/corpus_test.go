package wire

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/tinylib/msgp/msgp"

	"github.com/kvconn/kvconn/connector"
)

// corpusDir holds the golden frames; docs/protocol.md describes the index.
const corpusDir = "../testdata/frames"

// corpusEntry is one file of the corpus.
type corpusEntry struct {
	File string `json:"file"`
	// What is "frame", "plan" or, with Frame, "layout".
	What  string `json:"what"`
	Op    string `json:"op,omitempty"`
	Code  Op     `json:"op_code,omitempty"`
	Kind  string `json:"kind,omitempty"`
	ID    uint32 `json:"id,omitempty"`
	Epoch uint64 `json:"epoch,omitempty"`
	FDs   uint8  `json:"fds,omitempty"`
	// Fields are the body's, or the plan's.
	Fields any `json:"fields,omitempty"`
	// Pieces say where the layout of a register request puts blocks.
	Pieces []corpusPieces `json:"pieces,omitempty"`

	bytes []byte
}

// corpusPieces are the pieces of one block, as [region, offset, bytes].
type corpusPieces struct {
	Group  int         `json:"group"`
	Block  uint32      `json:"block"`
	Pieces [][3]uint64 `json:"pieces"`
}

type corpusIndex struct {
	Protocol int            `json:"protocol"`
	Entries  []*corpusEntry `json:"entries"`
}

func corpusLayout() *connector.Layout {
	return &connector.Layout{Groups: []connector.GroupLayout{
		{Blocks: 256, Runs: []connector.Run{{Region: 0, Offset: 4096, Layers: 2, LayerStride: 1 << 20, BlockStride: 4096, Bytes: 4096}}},
		{Blocks: 64, Runs: []connector.Run{{Region: 1, Layers: 1, BlockStride: 8192, Bytes: 2048}, {Region: 1, Offset: 4096, Layers: 1, BlockStride: 8192, Bytes: 2048}}},
		{Runs: []connector.Run{}},
	}}
}

func corpusProof(seed byte) connector.Proof {
	var p connector.Proof
	for i := range p {
		p[i] = seed + byte(i)
	}
	return p
}

func corpusPlan() *connector.Plan {
	block := func(slot uint32, seed byte) connector.PlanBlock {
		p := corpusProof(seed)
		return connector.PlanBlock{Slot: slot, Key: connector.EngineKey(p), Proof: p}
	}
	scope := connector.Scope{Salt: "tenant", LoRA: "adapter"}.Digest()
	return &connector.Plan{
		Namespace: connector.NamespaceDigest(corpusProof(0x40)),
		Loads: []connector.RequestLoad{{Request: "req-1", Transfers: []connector.Transfer{
			{Group: 1, Parent: connector.Key{0xaa}, Scope: scope, Blocks: []connector.PlanBlock{block(7, 1), block(300, 2)}},
			{Blocks: []connector.PlanBlock{block(1, 3)}},
		}}, {Request: "req-2", Lost: []uint32{70000, 5}}},
		Saves: []connector.Transfer{{Scope: connector.Scope{Salt: "tenant"}.Digest(), Blocks: []connector.PlanBlock{block(9, 4)}}},
	}
}

// corpusPlaces are what a client in handoff mode has put into the second transfer of
// plan.bin. This version reads such plans and does not make them: the file is its own source.
func corpusPlaces() []connector.HandoffShard {
	return []connector.HandoffShard{
		{Shard: 0, Blocks: []connector.HandoffBlock{{Offset: 1 << 21, Sum: 0x0102030405060708}}},
		{Shard: 513, Blocks: []connector.HandoffBlock{{Offset: 1<<33 + 4096, Sum: 9}}},
	}
}

func corpusPlanFile(t *testing.T) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(corpusDir, "plan.bin"))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// corpusHandoff says where an offer's bytes lie, with numbers that need all 64 bits.
func corpusHandoff() *connector.HandoffOffer {
	return &connector.HandoffOffer{First: 2, Shards: []connector.HandoffShard{
		{Shard: 0, Blocks: []connector.HandoffBlock{{Offset: 4096, Sum: 0xfedcba9876543210}, {Offset: 1 << 21, Sum: 7}}},
		{Shard: 513, Blocks: []connector.HandoffBlock{{Offset: 1<<33 + 4096, Sum: 9}, {Sum: 1}}},
	}}
}

func corpusManifest() []byte {
	m := connector.Manifest{
		Engine: "vllm/0.32.0", Model: "example/model", Revision: "0123abc", KVDType: "bfloat16", BlockSize: 16,
		Groups: []connector.Group{
			{Layers: 2, KVHeads: 4, HeadSize: 256, Layout: "LBHNC"},
			{Layers: 2, Window: 1024, KVHeads: 4, HeadSize: 256, Layout: "LBHNC"},
		},
		TensorParallel: 2, PipelineParallel: 1, KeyScheme: connector.KeySchemeTokens, HashScheme: connector.HashScheme,
		Extra: map[string]string{"attention": "flash"},
	}
	return m.Canonical()
}

// corpusOffer says where its tokens lie.
func corpusOffer() connector.Offer {
	o := connector.Offer{Tokens: 48, Async: true, Refused: 32}
	o.Tiers[0] = connector.TierTokens{Tier: "host", Tokens: 16}
	o.Tiers[1] = connector.TierTokens{Tier: "disk", Tokens: 32}
	return o
}

// corpusLoads say what they brought; the second never ran.
func corpusLoads() []connector.FinishedLoad {
	return []connector.FinishedLoad{
		{Request: "req-1", FailedBlocks: []uint32{7}, Took: 12_345 * time.Microsecond, Tiers: []connector.TierBlocks{
			{Tier: "disk", Blocks: 20, Bytes: 1 << 33}, {Tier: "host", Blocks: 3, Bytes: 24576},
		}},
		{Request: "req-2", FailedBlocks: []uint32{70000, 5}},
	}
}

// corpusFrames are the frames by the names of their files.
func corpusFrames(t *testing.T) []*corpusEntry {
	var out []*corpusEntry
	add := func(op Op, kind Kind, variant string, body []byte, fds int) {
		kinds := [...]string{"request", "reply", "error"}
		e := &corpusEntry{What: "frame", Op: op.String(), Code: op, Kind: kinds[kind], ID: uint32(len(out) + 1), FDs: uint8(fds)}
		e.File = fmt.Sprintf("%s.%s%s.bin", e.Op, e.Kind, variant)
		if kind != KindRequest {
			e.Epoch = 0x0123456789ab
		}
		b := make([]byte, HeaderBytes, HeaderBytes+len(body))
		(&Header{Length: uint32(len(body)), ID: e.ID, Op: op, Kind: kind, FDs: e.FDs, Epoch: e.Epoch}).put(b)
		e.bytes = append(b, body...)
		e.Fields = readable(t, body)
		out = append(out, e)
	}
	hello := Hello{MinVersion: 2, MaxVersion: 2, Role: RoleWorker, Client: "kvconn-python/0.1.0", Engine: "engine-1", Manifest: corpusManifest(), Rank: 1, Handoff: true}
	add(OpHello, KindRequest, "", hello.Append(nil), 0)
	helloReply := HelloReply{Version: 2, Server: "kvconnd/0.1.0", Namespace: connector.NamespaceDigest(corpusProof(0x40)).String(), LoadTimeoutMS: 10_000}
	add(OpHello, KindReply, "", helloReply.Append(nil), 0)
	match := connector.MatchRequest{
		Request: "req-1", From: 16, Tokens: []uint32{1, 2, 70_000, 1 << 31}, PromptTokens: 20, Computed: 16,
		Spans: []connector.Span{{Start: 3, End: 19, ID: []byte("image-hash")}}, Scope: connector.Scope{Salt: "tenant", LoRA: "adapter"}, NoLoad: true,
	}
	add(OpMatch, KindRequest, "", AppendMatch(nil, &match), 0)
	add(OpMatch, KindReply, "", AppendOffer(nil, connector.Offer{Tokens: 48, Async: true}), 0)
	step := connector.StepRequest{
		Allocs: []connector.Alloc{{Request: "req-1", Blocks: [][]uint32{{5, 6, 7}, {connector.NoBlock, 8, 9}}, Computed: 16, External: 32, GroupComputed: []int{16, 0}}},
		Scheduled: []connector.Scheduled{
			{Request: "req-2", NewBlocks: [][]uint32{{10}, {11}}, Reset: true, Count: 17},
			{Request: "req-3", Computed: 40, Count: 1, From: 40, NewTokens: []uint32{99}},
		},
		Preempted: []string{"req-4"}, Finished: []string{"req-5", "req-6"},
	}
	add(OpStep, KindRequest, "", AppendStep(nil, &step), 0)
	stepReply := connector.StepReply{Metadata: corpusPlanFile(t), Loads: []connector.PlannedLoad{{Request: "req-1", Blocks: []uint32{7, 300, 1}}, {Request: "req-2", Blocks: []uint32{70000, 5}}}}
	add(OpStep, KindReply, "", AppendStepReply(nil, &stepReply), 0)
	add(OpLoaded, KindRequest, "", AppendLoaded(nil, &connector.LoadedReport{Done: []string{"req-1"}, InvalidBlocks: []uint32{7}}), 0)
	add(OpLoaded, KindReply, "", AppendEmpty(nil), 0)
	add(OpReset, KindRequest, "", AppendEmpty(nil), 0)
	add(OpReset, KindReply, "", AppendEmpty(nil), 0)
	add(OpRegister, KindRequest, "", AppendLayout(nil, corpusLayout()), 3)
	out[len(out)-1].Pieces = corpusBlocks(corpusLayout())
	add(OpRegister, KindReply, "", AppendRegisterReply(nil, []int{8192, 4096, 0}), 0)
	add(OpRegister, KindReply, ".staged", AppendRegisterReply(nil, []int{8192, 4096, 0}), 1)
	add(OpUnregister, KindRequest, "", AppendEmpty(nil), 0)
	add(OpUnregister, KindReply, "", AppendEmpty(nil), 0)
	meta := corpusPlanFile(t)
	add(OpLoad, KindRequest, "", AppendMeta(nil, meta), 0)
	add(OpLoad, KindReply, "", AppendCount(nil, 2), 0)
	add(OpSave, KindRequest, "", AppendMeta(nil, meta), 0)
	add(OpSave, KindReply, "", AppendSaveResult(nil, connector.SaveResult{Taken: 3, Dropped: 1, Present: 2}), 0)
	add(OpPoll, KindRequest, "", AppendEmpty(nil), 0)
	add(OpPoll, KindReply, "", AppendPolled(nil, &connector.Polled{
		Finished: []connector.FinishedLoad{{Request: "req-1", FailedBlocks: []uint32{7}}, {Request: "req-2"}},
		Stored:   []connector.StoredPut{{ID: "save-1", SaveResult: connector.SaveResult{Taken: 5, Dropped: 1, Present: 300}}},
	}), 0)
	add(OpCancel, KindRequest, "", AppendCancel(nil, "req-1"), 0)
	add(OpCancel, KindReply, "", AppendEmpty(nil), 0)
	hashes := []connector.Proof{corpusProof(10), corpusProof(11), corpusProof(12)}
	present := connector.PresentRequest{Request: "req-1", First: 2, Parent: corpusProof(9), Hashes: hashes, Held: 3, NoLoad: true}
	add(OpPresent, KindRequest, "", AppendPresent(nil, &present), 0)
	add(OpPresent, KindReply, "", AppendPresence(nil, [][]byte{{5}, {4}}), 0)
	move := connector.KeyedMove{ID: "load-1", Request: "req-1", Parts: []connector.KeyedPart{
		{Group: 1, Parent: corpusProof(9), Hashes: hashes[:2], Slots: []uint32{4, 5}}, {Hashes: hashes[2:], Slots: []uint32{70000}},
	}}
	add(OpFetch, KindRequest, "", AppendMove(nil, &move), 0)
	add(OpFetch, KindReply, "", AppendEmpty(nil), 0)
	move.ID, move.Request, move.Scope = "save-1", "", connector.Scope{Salt: "tenant", LoRA: "adapter"}
	add(OpPut, KindRequest, "", AppendMove(nil, &move), 0)
	add(OpPut, KindReply, "", AppendEmpty(nil), 0)
	add(OpTouch, KindRequest, "", AppendTouch(nil, &connector.TouchRequest{Request: "req-1", Hashes: hashes, Tokens: 2700, Seconds: 1.25}), 0)
	add(OpTouch, KindReply, "", AppendEmpty(nil), 0)
	for _, code := range []string{CodeProtocol, CodeVersion, CodeBadRequest, CodeUnknownRequest, CodeNotRegistered, CodeInternal} {
		body := ErrorBody{Code: code, Message: "what went wrong"}
		add(OpMatch, KindError, "."+code, body.Append(nil), 0)
	}
	add(OpMatch, KindReply, ".staged", AppendOffer(nil, connector.Offer{Tokens: 32, Async: true, Handoff: corpusHandoff()}), 0)
	match.Tiers, match.Trace = true, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	add(OpMatch, KindRequest, ".told", AppendMatch(nil, &match), 0)
	add(OpMatch, KindReply, ".told", AppendOffer(nil, corpusOffer()), 0)
	step.TellSaves = true
	add(OpStep, KindRequest, ".told", AppendStep(nil, &step), 0)
	stepReply.Saves = []connector.PlannedSave{{Request: "req-2", First: 0, Count: 17}, {Request: "req-3", Group: 1, First: 40, Count: 1}}
	add(OpStep, KindReply, ".told", AppendStepReply(nil, &stepReply), 0)
	add(OpPoll, KindReply, ".told", AppendPolled(nil, &connector.Polled{Finished: corpusLoads()}), 0)
	corpusChannels(add, &move)
	again := ErrorBody{Code: CodeAgain, Message: "what went wrong"}
	add(OpRegister, KindError, "."+CodeAgain, again.Append(nil), 0)
	corpusLater(add, meta)
	corpusTraced(add)
	return out
}

// corpusBlocks lists where some blocks of a layout lie.
func corpusBlocks(l *connector.Layout) []corpusPieces {
	var out []corpusPieces
	for g := range l.Groups {
		for _, block := range []uint32{0, 3, 63} {
			p := corpusPieces{Group: g, Block: block}
			for _, r := range l.Groups[g].Runs {
				for layer := range uint64(r.Layers) {
					p.Pieces = append(p.Pieces, [3]uint64{uint64(r.Region), r.Offset + layer*r.LayerStride + uint64(block)*r.BlockStride, r.Bytes})
				}
			}
			if p.Pieces != nil {
				out = append(out, p)
			}
		}
	}
	return out
}

// readable is a body in JSON's terms: a bin of token or block ids is an array of numbers,
// one of hashes an array of hexadecimal strings, the manifest a string, an offer's places as in
// the plan, any other bin hexadecimal.
func readable(t *testing.T, body []byte) any {
	t.Helper()
	v, rest, err := msgp.ReadIntfBytes(body)
	if err != nil || len(rest) > 0 {
		t.Fatalf("body %x: %v", body, err)
	}
	return readableValue("", v)
}

func readableValue(key string, v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, e := range v {
			out[k] = readableValue(k, e)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = readableValue(key, v[i])
		}
		return out
	case []byte:
		switch key {
		case "tokens", "blocks", "invalid", "slots", "loads", "finished":
			out := make([]uint32, 0, len(v)/4)
			for i := 0; i < len(v); i += 4 {
				out = append(out, uint32(v[i])|uint32(v[i+1])<<8|uint32(v[i+2])<<16|uint32(v[i+3])<<24)
			}
			return out
		case "hashes":
			out := []string{}
			for i := 0; i < len(v); i += connector.ProofSize {
				out = append(out, hex.EncodeToString(v[i:i+connector.ProofSize]))
			}
			return out
		case "manifest":
			return string(v)
		case "staged":
			if o, err := connector.ParseHandoffOffer(v); err == nil {
				return map[string]any{"first": o.First, "shards": readableHandoff(o.Shards)}
			}
		}
		return hex.EncodeToString(v)
	}
	return v
}

// readableHandoff is where an offer's blocks lie in JSON's terms.
func readableHandoff(shards []connector.HandoffShard) []any {
	out := []any{}
	for _, s := range shards {
		var at [][2]uint64
		for _, b := range s.Blocks {
			at = append(at, [2]uint64{b.Offset, b.Sum})
		}
		out = append(out, map[string]any{"shard": s.Shard, "blocks": at})
	}
	return out
}

// readablePlan is a plan in JSON's terms; places are those of its second transfer.
func readablePlan(p *connector.Plan, places []connector.HandoffShard) any {
	transfers := func(all []connector.Transfer) []any {
		out := []any{}
		for i := range all {
			t := &all[i]
			blocks := []any{}
			for _, b := range t.Blocks {
				blocks = append(blocks, map[string]any{"slot": b.Slot, "key": b.Key.String(), "proof": b.Proof.String()})
			}
			staged := []any{}
			if i == 1 {
				staged = readableHandoff(places)
			}
			out = append(out, map[string]any{
				"group": t.Group, "parent": t.Parent.String(), "scope": hex.EncodeToString(t.Scope[:]), "blocks": blocks, "staged": staged,
			})
		}
		return out
	}
	loads := []any{}
	for i := range p.Loads {
		loads = append(loads, map[string]any{"r": p.Loads[i].Request, "lost": append([]uint32{}, p.Loads[i].Lost...), "transfers": transfers(p.Loads[i].Transfers)})
	}
	return map[string]any{"namespace": p.Namespace.String(), "loads": loads, "saves": transfers(p.Saves)}
}

// TestCorpusIsWhatThisVersionSends compares the golden frames with what is encoded now.
// With KVCONN_UPDATE_GOLDEN=1 it writes them; that is right only for a change of version.
func TestCorpusIsWhatThisVersionSends(t *testing.T) {
	entries := corpusFrames(t)
	entries = append(entries,
		&corpusEntry{File: "plan.bin", What: "plan", Fields: readablePlan(corpusPlan(), corpusPlaces()), bytes: corpusPlanFile(t)},
		&corpusEntry{File: "plan.direct.bin", What: "plan", Fields: readablePlan(corpusPlan(), nil), bytes: corpusPlan().Append(nil)})
	index, err := json.MarshalIndent(corpusIndex{Protocol: MaxVersion, Entries: entries}, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{"index.json": append(index, '\n')}
	for _, e := range entries {
		files[e.File] = e.bytes
	}
	for name, want := range files {
		path := filepath.Join(corpusDir, name)
		if os.Getenv("KVCONN_UPDATE_GOLDEN") == "1" {
			if err := os.MkdirAll(corpusDir, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, want, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is not what this version sends (%v)", name, err)
		}
	}
	if all, err := os.ReadDir(corpusDir); err != nil || len(all) != len(files) {
		t.Errorf("%d files in the corpus, %v; want %d", len(all), err, len(files))
	}
}

// Every golden frame passes through a connection and decodes into what encodes to it again.
func TestCorpusDecodes(t *testing.T) {
	for _, e := range corpusFrames(t) {
		b, err := os.ReadFile(filepath.Join(corpusDir, e.File))
		if err != nil {
			t.Fatal(err)
		}
		h, err := ParseHeader(b)
		if err != nil || h.Op != e.Code || h.ID != e.ID || h.FDs != e.FDs || h.Epoch != e.Epoch || int(h.Length) != len(b)-HeaderBytes {
			t.Errorf("%s: header %+v, %v", e.File, h, err)
		}
		again, err := recode(h, b[HeaderBytes:])
		if err != nil || !bytes.Equal(again, b[HeaderBytes:]) {
			t.Errorf("%s: decodes to what encodes as %x, %v", e.File, again, err)
		}
	}
	for name, b := range map[string][]byte{"plan.bin": corpusPlanFile(t), "plan.direct.bin": corpusPlan().Append(nil)} {
		if p, err := connector.ParsePlan(b); err != nil || !reflect.DeepEqual(p, corpusPlan()) {
			t.Errorf("%s: %+v, %v", name, p, err)
		}
	}
}
