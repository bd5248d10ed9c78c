package publish

import (
	"encoding/binary"
	"time"

	"github.com/tinylib/msgp/msgp"

	"github.com/kvconn/kvconn/connector"
)

// medium is what events call the memory that blocks are in, and rank the data-parallel rank of all batches: a
// store has one.
const (
	medium = "STORAGE"
	rank   = 0
)

// batch encodes messages: [ts, [event], rank], with one event each.
type batch struct {
	form HashForm
	now  func() time.Time
}

// open begins a message whose event is a map of n fields.
func (e *batch) open(kind string, n uint32) []byte {
	b := msgp.AppendArrayHeader(nil, 3)
	now := e.now()
	b = msgp.AppendFloat64(b, float64(now.Unix())+float64(now.Nanosecond())/1e9)
	b = msgp.AppendMapHeader(msgp.AppendArrayHeader(b, 1), n)
	return msgp.AppendString(msgp.AppendString(b, "type"), kind)
}

func (e *batch) close(b []byte) []byte { return msgp.AppendInt(b, rank) }

func (e *batch) cleared() []byte { return e.close(e.open("AllBlocksCleared", 1)) }

// stored says that blocks came. The fields are those that vLLM never omits.
func (e *batch) stored(keys []connector.Key, blockSize int) []byte {
	b := e.hashes(e.open("BlockStored", 8), keys)
	b = msgp.AppendNil(msgp.AppendString(b, "parent_block_hash"))
	b = msgp.AppendArrayHeader(msgp.AppendString(b, "token_ids"), 0)
	b = msgp.AppendInt(msgp.AppendString(b, "block_size"), blockSize)
	b = msgp.AppendNil(msgp.AppendString(b, "lora_id"))
	b = msgp.AppendString(msgp.AppendString(b, "medium"), medium)
	b = msgp.AppendNil(msgp.AppendString(b, "lora_name"))
	return e.close(b)
}

// removed says that blocks went.
func (e *batch) removed(keys []connector.Key) []byte {
	b := e.hashes(e.open("BlockRemoved", 3), keys)
	return e.close(msgp.AppendString(msgp.AppendString(b, "medium"), medium))
}

func (e *batch) hashes(b []byte, keys []connector.Key) []byte {
	b = msgp.AppendArrayHeader(msgp.AppendString(b, "block_hashes"), uint32(len(keys)))
	for i := range keys {
		number := binary.BigEndian.Uint64(keys[i][:])
		switch e.form {
		case HashBytes:
			b = msgp.AppendBytes(b, keys[i][:])
		case HashInt64:
			b = msgp.AppendInt64(b, int64(number))
		default:
			b = msgp.AppendUint64(b, number)
		}
	}
	return b
}
