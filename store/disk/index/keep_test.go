package index

import "testing"

func TestKeptRecordsAreNotEvictedAndBounded(t *testing.T) {
	const n = 640
	table := New()
	defer table.Close()
	base, err := table.AddSlots(n)
	if err != nil {
		t.Fatal(err)
	}
	table.Track(1, Range{Base: base, Slots: n}, 0)
	batch := make([]Insertion, n)
	refs, seqs := make([]Ref, n), make([]uint64, n)
	for i := range batch {
		batch[i] = Insertion{ID: ID{Namespace: 1, Key: [16]byte{byte(i), byte(i >> 8), 1}}, Ref: base + Ref(i), Seq: uint64(i + 1), Bytes: 10}
		refs[i], seqs[i] = batch[i].Ref, batch[i].Seq
	}
	table.Insert(batch)
	if got := table.Keep(refs[:100], seqs[:100], true, 500); got != 50 {
		t.Errorf("%d are kept, room is for 50", got)
	}
	if got := table.Keep(refs[:100], seqs[:100], true, 1000); got != 50 {
		t.Errorf("%d more are kept", got)
	}
	if got := table.Keep(refs[100:101], []uint64{7}, true, 5000); got != 0 {
		t.Error("another record of a slot is kept")
	}
	evicted := 0
	for {
		if _, ok := table.Choose(1); !ok {
			break
		}
		out := table.Evict(1, n, nil)
		for _, r := range out {
			if r.Ref < base+100 {
				t.Fatalf("slot %d was to be kept", r.Ref)
			}
		}
		evicted += len(out)
	}
	if k := table.Kept(); evicted != n-100 || k.Records != 100 || k.Bytes != 1000 {
		t.Errorf("%d are evicted; kept: %+v", evicted, k)
	}
	any := func(Range) bool { return true }
	if _, ok := table.ColdestRange(0, ^uint64(0), false, any); ok {
		t.Error("a range with kept records is given up before others")
	}
	if _, ok := table.ColdestRange(0, ^uint64(0), true, any); !ok {
		t.Error("no range can be given up")
	}
	if got := table.Keep(refs[:10], seqs[:10], false, 0); got != 10 {
		t.Errorf("%d are kept no more", got)
	}
	if first, ok := table.Choose(1); !ok || first.Ref >= base+10 {
		t.Errorf("%+v, %v", first, ok)
	}
	if _, there := table.Remove(base+20, 21); !there || table.Kept().Records != 89 {
		t.Errorf("%+v", table.Kept())
	}
	if removed, left := table.Empty(Range{Base: base, Slots: n}, nil); len(removed) != 99 || left != 0 {
		t.Errorf("%d are removed, %d left", len(removed), left)
	}
	if k := table.Kept(); k != (Kept{GivenUp: 89}) || table.Pinned(base) || table.Keeps(base+50) {
		t.Errorf("%+v", k)
	}
}
