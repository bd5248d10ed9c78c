package service

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/kvconn/kvconn/router/feed"
	"github.com/kvconn/kvconn/router/registry"
	"github.com/kvconn/kvconn/router/route"
)

// RankAnswer is a rank as it stands.
type RankAnswer struct {
	registry.Rank
	// Ready says whether it gets requests, Why why not.
	Ready bool   `json:"ready"`
	Why   string `json:"why,omitempty"`
	Load  Load   `json:"load"`
	// Speed is what decisions are made with; 0 is unknown.
	Speed registry.Speeds `json:"speed"`
	// GPUBlocks are the blocks known to be in its GPU.
	GPUBlocks int64 `json:"gpu_blocks"`
	// EventFeed, DiskFeed and ObjectFeed are the states of what is followed; absent if nothing is.
	EventFeed  *feed.RankStats      `json:"event_feed,omitempty"`
	DiskFeed   *feed.ResidencyStats `json:"disk_feed,omitempty"`
	ObjectFeed *feed.ResidencyStats `json:"object_feed,omitempty"`
}

// Load is what is in flight on a rank.
type Load struct {
	ActiveRequests int     `json:"active_requests"`
	QueuedRequests int     `json:"queued_requests"`
	QueuedTokens   int64   `json:"queued_tokens"`
	PromptTokens   int64   `json:"prompt_tokens"`
	OutputTokens   int64   `json:"output_tokens"`
	DecodeBlocks   int64   `json:"decode_blocks"`
	RecentTokens   float64 `json:"recent_tokens"`
}

// RankList is the answer of GET /v1/ranks.
type RankList struct {
	Ranks []RankAnswer `json:"ranks"`
}

func rankAnswer(i *route.RankInfo) RankAnswer {
	return RankAnswer{
		Rank: i.Spec, Ready: i.Ready, Why: i.Why, GPUBlocks: i.Blocks, EventFeed: i.Events, DiskFeed: i.Disk, ObjectFeed: i.Object,
		Load: Load{
			ActiveRequests: i.Load.ActiveRequests, QueuedRequests: i.Load.QueuedRequests, QueuedTokens: i.Load.QueuedTokens,
			PromptTokens: i.Load.PromptTokens, OutputTokens: i.Load.OutputTokens, DecodeBlocks: i.Load.DecodeBlocks, RecentTokens: i.Load.RecentTokens,
		},
		Speed: registry.Speeds{
			PrefillTokensPerS: i.Speeds.PrefillTokens, DiskBytesPerS: i.Speeds.DiskBytes, ObjectBytesPerS: i.Speeds.ObjectBytes, BytesPerToken: i.Speeds.BytesPerToken,
		},
	}
}

func (s *server) serveRanks(w http.ResponseWriter, _ *http.Request) {
	list := RankList{Ranks: []RankAnswer{}}
	for _, i := range s.router.Ranks() {
		list.Ranks = append(list.Ranks, rankAnswer(&i))
	}
	writeJSON(w, http.StatusOK, list)
}

func (s *server) serveRank(w http.ResponseWriter, r *http.Request) {
	if i, ok := s.rank(w, r); ok {
		writeJSON(w, http.StatusOK, rankAnswer(&i))
	}
}

// rank is the one that the path names; it answers itself if there is none.
func (s *server) rank(w http.ResponseWriter, r *http.Request) (i route.RankInfo, ok bool) {
	id, err := strconv.ParseInt(r.PathValue("id"), 10, 32)
	if err == nil {
		i, ok = s.router.Rank(int32(id))
	}
	if !ok {
		writeError(w, http.StatusNotFound, "unknown_rank", fmt.Sprintf("no rank %.32q", r.PathValue("id")))
	}
	return i, ok
}

func (s *server) serveAddRank(w http.ResponseWriter, r *http.Request) {
	var body json.RawMessage
	if !s.readJSON(w, r, &body) {
		return
	}
	spec, err := registry.Parse(body)
	if err == nil {
		err = s.router.Add(spec)
	}
	s.changed(w, http.StatusCreated, spec.ID, err)
}

func (s *server) servePatchRank(w http.ResponseWriter, r *http.Request) {
	var body json.RawMessage
	if !s.readJSON(w, r, &body) {
		return
	}
	i, ok := s.rank(w, r)
	if !ok {
		return
	}
	id := i.Spec.ID
	s.changed(w, http.StatusOK, id, s.patch(id, body))
}

// patch changes the fields of a rank that the body has, one request at a time.
func (s *server) patch(id int32, body []byte) error {
	s.patching.Lock()
	defer s.patching.Unlock()
	i, ok := s.router.Rank(id)
	if !ok {
		return fmt.Errorf("update rank %d: %w", id, route.ErrUnknownRank)
	}
	spec := i.Spec
	if err := registry.Merge(&spec, body); err != nil {
		return err
	}
	if spec.ID != id {
		return errors.New("the id of a rank cannot be changed")
	}
	return s.router.Update(spec)
}

// changed answers with the rank as it stands, or says why it was not changed.
func (s *server) changed(w http.ResponseWriter, status int, id int32, err error) {
	switch {
	case errors.Is(err, route.ErrRankExists):
		writeError(w, http.StatusConflict, "rank_exists", err.Error())
	case errors.Is(err, route.ErrUnknownRank):
		writeError(w, http.StatusNotFound, "unknown_rank", err.Error())
	case errors.Is(err, route.ErrMismatch):
		writeError(w, http.StatusConflict, "mismatch", err.Error())
	case errors.Is(err, route.ErrTooManyRanks):
		writeError(w, http.StatusConflict, "too_many_ranks", err.Error())
	case err != nil:
		writeError(w, http.StatusBadRequest, "invalid_rank", err.Error())
	default:
		s.checks.again()
		i, ok := s.router.Rank(id)
		if !ok { // removed since
			writeError(w, http.StatusNotFound, "unknown_rank", "the rank was removed")
			return
		}
		writeJSON(w, status, rankAnswer(&i))
	}
}

// Removal is the answer to the removal of a rank.
type Removal struct {
	// InFlight is how many requests were there.
	InFlight int `json:"in_flight"`
}

func (s *server) serveDeleteRank(w http.ResponseWriter, r *http.Request) {
	i, ok := s.rank(w, r)
	if !ok {
		return
	}
	n, err := s.router.Remove(i.Spec.ID)
	if err != nil {
		s.changed(w, 0, i.Spec.ID, err)
		return
	}
	writeJSON(w, http.StatusOK, Removal{InFlight: n})
}

// bodyTimeout bounds the reading of a request's body.
const bodyTimeout = time.Minute

// readJSON reads a body of bounded size; it answers itself if that fails.
func (s *server) readJSON(w http.ResponseWriter, r *http.Request, v *json.RawMessage) bool {
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(bodyTimeout)) // not all connections have one
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, s.opts.MaxBodyBytes))
	_ = control.SetReadDeadline(time.Time{})
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		writeError(w, http.StatusRequestEntityTooLarge, "body_too_large", fmt.Sprintf("the body has more than %d bytes", tooLarge.Limit))
	case err != nil:
		writeError(w, http.StatusBadRequest, "invalid_request", err.Error())
	default:
		*v = b
	}
	return err == nil
}
