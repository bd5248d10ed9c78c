package format

import (
	"fmt"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
)

// Unit is what places in a data object are multiples of, and the size of a record's header, in bytes.
const Unit = 4096

// minSlotUnits is the least slot: a header, and a payload.
const minSlotUnits = 2

// Bounds of a data object. One with a single record may have the largest payload that there is.
const (
	MaxSlotsBytes    = store.MaxPayloadBytes + Unit
	MaxObjectRecords = store.MaxPayloadBytes / (minSlotUnits * Unit)
	MaxObjectBytes   = MaxSlotsBytes + MaxFooterBytes + TrailerBytes
)

// Object is a data object: records of one shard of one namespace, each in a slot as on disk: header,
// stored bytes, zeros up to a multiple of [Unit].
type Object struct {
	ID        ObjectID
	Namespace connector.NamespaceDigest
	Shard     connector.Shard
	// Bytes is the size of the whole object, PayloadBytes that of each record's payload before it was
	// compressed.
	Bytes, PayloadBytes uint32
	// Created is when the object was written, Used when a record of it was last known to be used.
	Created, Used Seconds
	// Needs are the features, as in the headers of records, without which some record cannot be read,
	// and Codec how records are compressed, 0 for not at all.
	Needs uint16
	Codec uint8
	// Runs divide Records into stretches of consecutive blocks. The first begins with record 0.
	Runs    []Run
	Records []Record
}

// Run is a stretch of consecutive blocks: each record after the first is the child of the one before.
type Run struct {
	First  uint16 // ordinal of its first record
	Depth  uint16 // blocks before that one in its chain, saturating
	Parent connector.Key
}

// Record is a record of an object: the block it is of, and the place of its slot in units of [Unit].
type Record struct {
	Key   connector.Key
	Start uint16
}

// SlotBytes is the size of the slot of a record that stores storedBytes.
func SlotBytes(storedBytes int) int64 { return Unit + int64(storedBytes+Unit-1)&^(Unit-1) }

// ListBytes is what the object takes in a list.
func (o *Object) ListBytes() int64 { return listBytes(len(o.Runs), len(o.Records)) }

func listBytes(runs, records int) int64 {
	return objectEntryBytes + int64(runs)*runEntryBytes + int64(records)*recordEntryBytes
}

// Parent is the parent of record i.
func (o *Object) Parent(i int) connector.Key {
	for r := len(o.Runs) - 1; r >= 0; r-- {
		if int(o.Runs[r].First) == i {
			return o.Runs[r].Parent
		}
		if int(o.Runs[r].First) < i {
			break
		}
	}
	return o.Records[i-1].Key
}

// Slot is where record i lies in the object. It may say a little more than there is, never less: the
// header of the record tells how much is stored.
func (o *Object) Slot(i int) (from, bytes int64) {
	from = int64(o.Records[i].Start) * Unit
	end := o.slotsBytes()
	if i+1 < len(o.Records) {
		end = int64(o.Records[i+1].Start) * Unit
	}
	return from, min(end-from, SlotBytes(int(o.PayloadBytes)))
}

func (o *Object) slotsBytes() int64 { return SlotsBytes(o.Bytes, len(o.Runs), len(o.Records)) }

// SlotsBytes is where the last slot of an object ends, and the footer begins. A newer program may write a
// longer footer: then it is a place within that.
func SlotsBytes(bytes uint32, runs, records int) int64 {
	return (int64(bytes) - TrailerBytes - footerBytes(runs, records)) &^ (Unit - 1)
}

// footerBytes is the size of the footer that this program writes.
func (o *Object) footerBytes() int64 { return footerBytes(len(o.Runs), len(o.Records)) }

func footerBytes(runs, records int) int64 {
	return listOverhead + 2*sectionHeaderBytes + digestBytes + listBytes(runs, records)
}

// check reports what in an object breaks the rules, as [ErrBad].
func (o *Object) check() error {
	switch {
	case len(o.Records) == 0 || len(o.Records) > MaxObjectRecords || len(o.Runs) == 0 || len(o.Runs) > len(o.Records):
		return fmt.Errorf("%w: object %s has %d records in %d runs", ErrBad, o.ID, len(o.Records), len(o.Runs))
	case o.PayloadBytes < store.MinPayloadBytes || o.PayloadBytes > store.MaxPayloadBytes || o.Bytes > MaxObjectBytes:
		return fmt.Errorf("%w: object %s has %d bytes, and payloads of %d", ErrBad, o.ID, o.Bytes, o.PayloadBytes)
	case o.Runs[0].First != 0 || o.Records[0].Start != 0:
		return fmt.Errorf("%w: object %s does not begin with its first record", ErrBad, o.ID)
	}
	for i := range o.Runs[1:] {
		if first := o.Runs[i+1].First; first <= o.Runs[i].First || int(first) >= len(o.Records) {
			return fmt.Errorf("%w: run %d of object %s begins with record %d", ErrBad, i+1, o.ID, first)
		}
	}
	end := o.slotsBytes() / Unit
	for i := len(o.Records) - 1; i >= 0; i-- {
		start := int64(o.Records[i].Start)
		if start+minSlotUnits > end {
			return fmt.Errorf("%w: record %d of object %s has no room", ErrBad, i, o.ID)
		}
		end = start
	}
	return nil
}
