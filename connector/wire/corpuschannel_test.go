package wire

import (
	"time"

	"github.com/kvconn/kvconn/connector"
)

// corpusFetched is what a load has brought of two parts.
func corpusFetched() connector.FetchResult {
	return connector.FetchResult{Done: [][]byte{{1}, {0}}, Took: 1234 * time.Microsecond, Tiers: []connector.TierBlocks{{Tier: "disk", Blocks: 1, Bytes: 1 << 33}}}
}

// corpusPut is what has become of two parts of a save.
func corpusPut() connector.PutResult {
	return connector.PutResult{Done: [][]byte{{3}, {0}}, SaveResult: connector.SaveResult{Taken: 1, Dropped: 1, Present: 1}}
}

// corpusChannels adds the frames that version 5 brought; move is what they move.
func corpusChannels(add func(op Op, kind Kind, variant string, body []byte, fds int), move *connector.KeyedMove) {
	session := corpusProof(0x70)
	channel := Hello{MinVersion: 5, MaxVersion: 5, Role: RoleChannel, Client: "kvconn-python/0.1.0", Engine: "engine-1", Rank: 1, Session: session[:SessionIDBytes]}
	add(OpHello, KindRequest, ".channel", channel.Append(nil), 0)
	helloReply := HelloReply{Version: 5, Server: "kvconnd/0.1.0", Namespace: connector.NamespaceDigest(corpusProof(0x40)).String(), LoadTimeoutMS: 10_000, Session: channel.Session}
	add(OpHello, KindReply, ".session", helloReply.Append(nil), 0)
	move.ID, move.Request, move.Scope, move.Wait = "load-1", "req-1", connector.Scope{}, 700*time.Millisecond
	add(OpFetch, KindRequest, ".wait", AppendMove(nil, move), 0)
	first := move.Parts[0]
	move.Parts[0].Parent, move.Parts[0].AnyParent = connector.Proof{}, true
	add(OpFetch, KindRequest, ".anyparent", AppendMove(nil, move), 0)
	move.Parts[0] = first
	present := connector.PresentRequest{Request: "req-1", First: 2, AnyParent: true, Hashes: first.Hashes}
	add(OpPresent, KindRequest, ".anyparent", AppendPresent(nil, &present), 0)
	fetched, put := corpusFetched(), corpusPut()
	add(OpFetch, KindReply, ".wait", AppendFetched(nil, &fetched), 0)
	move.ID, move.Request = "save-1", ""
	add(OpPut, KindRequest, ".wait", AppendMove(nil, move), 0)
	add(OpPut, KindReply, ".wait", AppendPut(nil, &put), 0)
}

// corpusLater adds the save that is reported later.
func corpusLater(add func(op Op, kind Kind, variant string, body []byte, fds int), meta []byte) {
	add(OpSave, KindRequest, ".later", AppendSave(nil, &connector.SaveRequest{ID: "save-2", Metadata: meta, Revoked: 300}), 0)
	add(OpSave, KindReply, ".later", AppendSaveLater(nil), 0)
}

// corpusTraced adds the request by key that has a trace.
func corpusTraced(add func(op Op, kind Kind, variant string, body []byte, fds int)) {
	present := connector.PresentRequest{Request: "req-1", Hashes: []connector.Proof{corpusProof(10)}, Trace: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
	add(OpPresent, KindRequest, ".traced", AppendPresent(nil, &present), 0)
}
