package agents

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/kvconn/kvconn/router/replay"
)

// Prefix begins a text that [FromText] takes, where commands take the name of a trace.
const Prefix = "agents:"

// Rate is the number of requests a second that machines can serve if every reused token is read from disk and all
// others are computed: what a load of 1 is. GPU caches can make more possible. Without a disk it is what they can compute.
func Rate(m replay.Options, o Options) float64 {
	m.EnsureDefaults()
	o.EnsureDefaults()
	reused := o.Reuse * float64(o.MeanPromptTokens)
	rate := float64(m.Ranks) * m.PrefillTokensPerS / (float64(o.MeanPromptTokens) - reused)
	if m.DiskBlocks > 0 {
		rate = min(rate, float64(m.Nodes)*m.DiskBytesPerS/(reused*m.BytesPerToken))
	}
	return rate
}

// ErrText means that a text does not describe agents.
var ErrText = errors.New("want " + Prefix + "NAME=NUMBER,… with the names load or rate, agents, requests, prompt, reuse, kinds, output, seed")

// FromText generates the trace that a text describes, such as agents:load=0.9,agents=64, with load as a part of [Rate] on
// the machines m, or rate in requests a second; the default is load=0.9. Blocks are of blockTokens. Errors wrap
// [ErrText], or are those of [Options.Validate].
func FromText(text string, m replay.Options, blockTokens int) (*replay.Trace, error) {
	o, load := Options{BlockTokens: blockTokens}, 0.9
	for item := range strings.SplitSeq(strings.TrimPrefix(text, Prefix), ",") {
		if item == "" {
			continue
		}
		name, number, _ := strings.Cut(item, "=")
		v, err := strconv.ParseFloat(number, 64)
		if err != nil || !(v >= 0 && v <= math.MaxUint32) {
			return nil, fmt.Errorf("%q: %w", item, ErrText)
		}
		switch name {
		case "load":
			load = v
		case "rate":
			o.RequestsPerS = v
		case "agents":
			o.Agents = int(v)
		case "requests":
			o.Requests = int(v)
		case "prompt":
			o.MeanPromptTokens = int(v)
		case "reuse":
			o.Reuse = v
		case "kinds":
			o.Kinds = int(v)
		case "output":
			o.MeanOutputTokens = int(v)
		case "seed":
			o.Seed = uint32(v)
		default:
			return nil, fmt.Errorf("%q: %w", item, ErrText)
		}
	}
	if o.RequestsPerS == 0 {
		o.RequestsPerS = load * Rate(m, o)
		if !(o.RequestsPerS > 0) {
			return nil, fmt.Errorf("a load of %v: %w", load, ErrText)
		}
	}
	return Generate(o)
}
