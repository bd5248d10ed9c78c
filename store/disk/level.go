package disk

import "github.com/kvconn/kvconn/store"

var _ store.Tier = (*Store)(nil)

// Name is disk.
func (s *Store) Name() string { return "disk" }

// Usage is what the store holds and may hold on disk.
func (s *Store) Usage() store.Usage {
	st := s.Stats()
	u := store.Usage{Records: st.Records, UsedBytes: st.PhysicalBytes, MaxBytes: st.MaxBytes, ReachableBytes: st.MaxBytes, Hits: st.Reads}
	if st.FileSystemBytes > 0 {
		u.ReachableBytes = st.EffectiveMaxBytes
	}
	return u
}
