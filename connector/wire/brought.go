package wire

import (
	"fmt"
	"slices"
	"time"

	"github.com/tinylib/msgp/msgp"

	"github.com/kvconn/kvconn/connector"
)

// What loads brought is a field of its own beside the list of loads in the answer to poll, as long
// as that is: clients that do not know it skip it.

// broughtFields is 1 where there is anything to tell.
func broughtFields(loads []connector.FinishedLoad) uint32 {
	if slices.ContainsFunc(loads, func(l connector.FinishedLoad) bool { return l.Took > 0 || len(l.Tiers) > 0 }) {
		return 1
	}
	return 0
}

func appendBrought(b []byte, loads []connector.FinishedLoad) []byte {
	if broughtFields(loads) == 0 {
		return b
	}
	b = putArray(b, "loaded", len(loads))
	for i := range loads {
		l := &loads[i]
		b = msgp.AppendInt64(msgp.AppendArrayHeader(b, 2), l.Took.Microseconds())
		b = appendTierBlocks(b, l.Tiers)
	}
	return b
}

func appendTierBlocks(b []byte, tiers []connector.TierBlocks) []byte {
	b = msgp.AppendMapHeader(b, uint32(len(tiers)))
	for i := range tiers {
		t := &tiers[i]
		b = msgp.AppendArrayHeader(msgp.AppendString(b, t.Tier), 2)
		b = msgp.AppendInt64(msgp.AppendInt(b, t.Blocks), t.Bytes)
	}
	return b
}

// brought decodes what loads brought, into loads without names.
func (d *decoder) brought() (out []connector.FinishedLoad) {
	for range d.array("loaded", connector.MaxStepRequests) {
		if !d.tuple("loaded", 2) {
			return nil
		}
		l := connector.FinishedLoad{Took: d.took()}
		l.Tiers = d.tierBlocks()
		out = append(out, l)
	}
	return out
}

// took decodes the time of a load.
func (d *decoder) took() time.Duration {
	const maxMicros = 1 << 40
	return time.Duration(d.uint("time of a load", maxMicros)) * time.Microsecond
}

// tierBlocks decodes what a load brought by the tier that it came from.
func (d *decoder) tierBlocks() (out []connector.TierBlocks) {
	const maxBytes = 1 << 62
	d.tiers(func(tier string) {
		if d.tuple("blocks and bytes of a tier", 2) {
			blocks, bytes := d.uint("blocks of a tier", maxNumber), d.uint("bytes of a tier", maxBytes)
			out = append(out, connector.TierBlocks{Tier: tier, Blocks: int(blocks), Bytes: int64(bytes)})
		}
	})
	return out
}

// tiers calls fn with the name of each tier of a map. fn reads the value.
func (d *decoder) tiers(fn func(tier string)) {
	if d.err != nil {
		return
	}
	n := 0
	d.fields(func(tier []byte) {
		if n++; n > connector.MaxTiers || len(tier) > connector.MaxTierBytes {
			d.fail("more than %d tiers, or a name of more than %d bytes", connector.MaxTiers, connector.MaxTierBytes)
			return
		}
		fn(string(tier))
	})
}

// joinBrought adds to loads what they brought, if that was told.
func joinBrought(loads, brought []connector.FinishedLoad) error {
	if len(brought) > 0 && len(brought) != len(loads) {
		return fmt.Errorf("%w: %d loads, and what %d brought", connector.ErrProtocol, len(loads), len(brought))
	}
	for i := range brought {
		loads[i].Tiers, loads[i].Took = brought[i].Tiers, brought[i].Took
	}
	return nil
}
