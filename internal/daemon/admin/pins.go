package admin

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/daemon/prompt"
	"github.com/kvconn/kvconn/internal/httpserve"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/pins"
)

// Pins keep records from being evicted: see [pins.Pins].
type Pins interface {
	Add(ctx context.Context, list []pins.Pin, during time.Duration, dry bool) ([]pins.Pin, error)
	Remove(ctx context.Context, ids ...string) error
	List() []pins.Pin
	MaxBytes() int64
	// Kept is how many records are pinned now, and the bytes of their payloads.
	Kept() (records, bytes int64)
}

// PinRequest is what POST /v1/pins asks for: all namespaces of a model, one namespace, or, with tokens, a prompt of a model.
type PinRequest struct {
	prompt.Prompt
	// Namespace is a digest, instead of a model.
	Namespace string `json:"namespace,omitempty"`
	// ForS is how long the pin holds, in seconds.
	ForS float64 `json:"for_s"`
	// DryRun has the records counted, and nothing pinned.
	DryRun bool `json:"dry_run,omitempty"`
}

// Pin is what keeps records of one namespace until a time.
type Pin struct {
	ID        string `json:"id"`
	Namespace string `json:"namespace"`
	Model     string `json:"model"`
	// Blocks are those of a prompt, and LastBlock the key of the last one; 0 and "" for a pin of a whole namespace.
	Blocks    int    `json:"blocks"`
	LastBlock string `json:"last_block"`
	// Records and Bytes of payloads were there when it was made.
	Records int64     `json:"records"`
	Bytes   int64     `json:"bytes"`
	Made    time.Time `json:"made"`
	Until   time.Time `json:"until"`
}

// PinList is the answer of GET /v1/pins, and of POST /v1/pins with the new ones.
type PinList struct {
	// Records are pinned now, all together, Bytes of payloads, and MaxBytes may be.
	Records  int64 `json:"records"`
	Bytes    int64 `json:"bytes"`
	MaxBytes int64 `json:"max_bytes"`
	// Pins are sorted by their ends.
	Pins []Pin `json:"pins"`
}

// ServePins answers with the pins in force.
func (s *Service) ServePins(w http.ResponseWriter, _ *http.Request) {
	httpserve.WriteJSON(w, http.StatusOK, s.pinList(s.o.Pins.List()), "  ")
}

func (s *Service) pinList(list []pins.Pin) *PinList {
	l := &PinList{MaxBytes: s.o.Pins.MaxBytes(), Pins: make([]Pin, len(list))}
	l.Records, l.Bytes = s.o.Pins.Kept()
	models := make(map[connector.NamespaceDigest]string)
	for _, info := range s.o.Disk.Namespaces() {
		n := of(&store.Contents{NamespaceInfo: info})
		models[info.Digest] = n.Model
	}
	for i := range list {
		p := &list[i]
		l.Pins[i] = Pin{
			ID: p.ID, Namespace: p.Namespace.String(), Model: models[p.Namespace], Blocks: len(p.Keys), Records: p.Records, Bytes: p.Bytes, Made: p.Made, Until: p.Until,
		}
		if n := len(p.Keys); n > 0 {
			l.Pins[i].LastBlock = p.Keys[n-1].String()
		}
	}
	slices.SortFunc(l.Pins, func(a, b Pin) int { return cmp.Or(a.Until.Compare(b.Until), cmp.Compare(a.ID, b.ID)) })
	return l
}

// ServePin pins what there is of a model, a namespace or a prompt.
func (s *Service) ServePin(w http.ResponseWriter, r *http.Request) {
	q := new(PinRequest)
	err := prompt.Decode(w, r, "model or namespace, tokens and for_s", q)
	if err == nil {
		err = q.check()
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	select {
	case s.counting <- struct{}{}: // it may look at every record
		defer func() { <-s.counting }()
	case <-r.Context().Done():
		return
	}
	list, err := s.o.Pins.Add(r.Context(), q.pins(s.o.Disk.Namespaces()), time.Duration(q.ForS*float64(time.Second)), q.DryRun)
	switch {
	case errors.Is(err, pins.ErrNothing):
		http.Error(w, "no record of it is on disk", http.StatusNotFound)
		return
	case errors.Is(err, pins.ErrFull):
		http.Error(w, fmt.Sprintf("%v: unpin something, or raise pin_max_percent", err), http.StatusConflict)
		return
	case err != nil:
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	for i := range list {
		if p := &list[i]; !q.DryRun {
			s.o.Logger.Info("records were pinned on request", "pin", p.ID, "namespace", p.Namespace, "blocks", len(p.Keys), "records", p.Records, "until", p.Until)
		}
	}
	httpserve.WriteJSON(w, http.StatusOK, s.pinList(list), "  ")
}

// check reports why nothing can be pinned so.
func (q *PinRequest) check() error {
	switch {
	case !(q.ForS > 0 && q.ForS <= pins.MaxTime.Seconds()):
		return fmt.Errorf("for_s is %v: up to %v, %s", q.ForS, pins.MaxTime.Seconds(), pins.MaxTime)
	case q.Namespace == "":
		return q.Validate()
	case q.Model != "" || len(q.Tokens) > 0:
		return errors.New("a namespace is pinned as a whole: give a model, or a namespace")
	}
	_, err := parseDigest(q.Namespace)
	return err
}

// pins are those to make.
func (q *PinRequest) pins(all []store.NamespaceInfo) (list []pins.Pin) {
	if q.Namespace != "" {
		ns, _ := parseDigest(q.Namespace) // checked
		return []pins.Pin{{Namespace: ns}}
	}
	for _, m := range prompt.Manifests(q.Model, all) {
		if len(q.Tokens) == 0 {
			list = append(list, pins.Pin{Namespace: m.Digest()})
			continue
		}
		keys := q.Keys(m.BlockSize)
		if len(keys) == 0 || m.KeyScheme == connector.KeySchemeEngine {
			continue
		}
		list = append(list, pins.Pin{Namespace: m.Digest(), Shards: shardsOf(m), Keys: keys})
	}
	return list
}

// shardsOf are the shards of all layer groups.
func shardsOf(m *connector.Manifest) (shards []connector.Shard) {
	for g := range m.Groups {
		shards = append(shards, m.GroupShards(g)...)
	}
	return shards
}

// ServeUnpin ends a pin before its time.
func (s *Service) ServeUnpin(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	if b, err := hex.DecodeString(id); err != nil || len(b) == 0 {
		http.Error(w, "a pin is named by hexadecimal digits", http.StatusBadRequest)
		return
	}
	switch err := s.o.Pins.Remove(r.Context(), id); {
	case errors.Is(err, pins.ErrUnknown):
		http.Error(w, "no pin "+id, http.StatusNotFound)
	case err != nil:
		http.Error(w, err.Error(), http.StatusInternalServerError)
	default:
		s.o.Logger.Info("a pin was ended on request", "pin", id)
		httpserve.WriteJSON(w, http.StatusOK, s.pinList(s.o.Pins.List()), "  ")
	}
}
