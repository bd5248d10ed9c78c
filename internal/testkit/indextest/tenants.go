// Package indextest makes indexes for the tests of packages that work on one.
package indextest

import (
	"encoding/binary"
	"testing"

	"github.com/kvconn/kvconn/store/disk/index"
	"github.com/kvconn/kvconn/store/disk/index/tenants"
)

// PayloadBytes is what each record of [Tenants] has.
const PayloadBytes = 8192

// Tenants returns a table of n records; slot i has one of tenant i modulo many, and no parent.
func Tenants(tb testing.TB, n, many int) *index.Table {
	tb.Helper()
	table := index.New()
	tb.Cleanup(table.Close)
	if _, err := table.AddSlots(uint32(n)); err != nil {
		tb.Fatal(err)
	}
	batch := make([]index.Insertion, 0, 256)
	for i := range n {
		in := index.Insertion{Ref: index.Ref(i), Seq: uint64(i + 1), Bytes: PayloadBytes, Tenant: Tenant(i % many)}
		binary.LittleEndian.PutUint64(in.ID.Key[:], uint64(i+1)*0x9E3779B97F4A7C15)
		if batch = append(batch, in); len(batch) == cap(batch) || i == n-1 {
			table.Insert(batch)
			batch = batch[:0]
		}
	}
	return table
}

// Tenant is one of many tenants; 0 is none.
func Tenant(i int) (id tenants.ID) {
	binary.LittleEndian.PutUint32(id[:], uint32(i))
	return id
}
