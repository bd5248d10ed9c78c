package recovery

import (
	"encoding/binary"
	"errors"
	"slices"
	"sync"

	"github.com/zeebo/xxh3"

	"github.com/kvconn/kvconn/store/record"
	"github.com/kvconn/kvconn/store/seal"
)

// Hidden counts the records that are on disk and not used. They stay until their slots are needed.
type Hidden struct {
	// Unsealed are not sealed, though there is a key file.
	Unsealed int64 `json:"unsealed_records" metric:"unsealed_records" help:"Records on disk that are not used because they have no seal, while a key file is set."`
	// Keyless are sealed with a key that is not in the key file.
	Keyless int64 `json:"keyless_records" metric:"keyless_records" help:"Records on disk that cannot be used because the key file lacks their key."`
}

// hidden are the records that were found and are not used.
type hidden struct {
	mu         sync.Mutex
	n          Hidden
	newer      int64
	keys       []uint32      // that are lacked
	namespaces [1 << 16]bool // numbers, that the journal has such records of
}

// noNamespace stands for a namespace that may have no number.
const noNamespace = -1

// hides reports whether a record is not to be used, and counts it then. A check uses those too that are only
// counted.
func (s *State) hides(algorithm uint8, keyID uint32, namespace int) bool {
	policy := record.Opener{Ring: s.opts.Opener.Ring}
	err := policy.AcceptKey(algorithm, keyID)
	if err == nil {
		return false
	}
	h := &s.hidden
	h.mu.Lock()
	defer h.mu.Unlock()
	if namespace != noNamespace {
		h.namespaces[namespace] = true
	}
	switch {
	case errors.Is(err, record.ErrUnsealed):
		if h.n.Unsealed++; h.n.Unsealed == 1 && !s.opts.CheckOnly {
			s.opts.Report.Logger.Info("store: records that are not sealed are not used, since there is a key file")
		}
	case errors.Is(err, record.ErrKey):
		h.n.Keyless++
		if !slices.Contains(h.keys, keyID) && !s.opts.CheckOnly {
			h.keys = append(h.keys, keyID)
			s.opts.Report.Logger.Warn("store: records are sealed with a key that is not here, and not used", "key", seal.KeyName(keyID),
				"remedy", "add that key to the key file, or let new records take their place")
		}
	default:
		h.newer++
	}
	return s.opts.Opener.AcceptKey(algorithm, keyID) != nil
}

// Hidden counts the records that are not used.
func (s *State) Hidden() Hidden {
	s.hidden.mu.Lock()
	defer s.hidden.mu.Unlock()
	return s.hidden.n
}

// Hides reports whether records of a namespace are hidden.
func (s *State) Hides(namespace uint16) bool {
	s.hidden.mu.Lock()
	defer s.hidden.mu.Unlock()
	return s.hidden.namespaces[namespace]
}

// count is the number of records that are hidden.
func (h *hidden) count() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.n.Unsealed + h.n.Keyless + h.newer
}

// keysName stands for the keys of a ring in a snapshot.
func keysName(r *seal.Ring) uint64 {
	if r == nil {
		return 0
	}
	ids := r.KeyIDs()
	slices.Sort(ids)
	var b []byte
	for _, id := range ids {
		b = binary.LittleEndian.AppendUint32(b, id)
	}
	return xxh3.Hash(b)
}
