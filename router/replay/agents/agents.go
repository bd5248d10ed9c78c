// Package agents generates the requests of a fleet of agents as a trace for router/replay: long sessions whose
// context grows turn by turn.
//
// A session begins with the system prompt of its kind, which all sessions of that kind share, and a task. Each
// turn sends the whole context again, longer by the last answer and the result of a tool. Four turns in five follow the
// one before after a short call of a tool, the others after a pause of a person, six times as long. A session ends when
// its context has reached a length of its own, and the agent begins another one. Times do not depend on how fast
// requests are served: a fleet that is too slow falls behind.
package agents

import (
	"math/rand/v2"

	"github.com/kvconn/kvconn/router/heap"
	"github.com/kvconn/kvconn/router/replay"
)

// session is one session of an agent; a heap has the one with the earliest next turn first.
type session struct {
	agent, number int32
	kind          int
	at            float64 // seconds, of the next turn
	context       int     // tokens of the next prompt
	limit         int     // tokens; a prompt beyond it opens another session
	blocks        []int32 // of the prompt so far
	opens         bool    // the next turn is its first
}

// Before orders sessions by their next turns.
func (s *session) Before(other *session) bool {
	return s.at < other.at || s.at == other.at && s.agent < other.agent
}

// The parts of a session, as parts of the mean prompt: what the system prompt takes, and with the task the first
// prompt. Contexts end at limitMean on average, so that the mean of all prompts is 1, and spread by limitSpread.
const (
	systemPart  = 0.1
	firstPart   = 0.2
	limitMean   = 1.78
	limitSpread = 0.25
)

// A turn follows after a pause of a person with this probability; it is longer by this factor.
const (
	pausePart   = 0.2
	pauseLonger = 6
)

// joinIntervals is the time in which all agents begin, in mean intervals between an agent's turns. If all began at once
// the first prompts, which nobody has computed, would be more work than everything after them.
const joinIntervals = 8

type generator struct {
	o        Options
	rand     *rand.Rand
	systems  [][]int32 // blocks by kind, nil until they are first used
	next     int32     // number of the next block
	sessions int32
	open     heap.Heap[*session]
}

// Generate returns a trace. Errors are those of [Options.Validate].
func Generate(o Options) (*replay.Trace, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	g := &generator{o: o, rand: rand.New(rand.NewPCG(uint64(o.Seed), 1)), systems: make([][]int32, o.Kinds)}
	for i := range o.Agents {
		s := &session{agent: int32(i), at: g.rand.Float64() * joinIntervals * g.meanInterval()}
		g.begin(s)
		// As if it had begun earlier: sessions do not end together.
		s.limit = s.context + int(g.rand.Float64()*float64(s.limit-s.context))
		g.open.Push(s)
	}
	t := &replay.Trace{BlockTokens: o.BlockTokens, Source: replay.ConversationsRecorded, Requests: make([]replay.Request, 0, o.Requests)}
	first := g.open[0].at
	for len(t.Requests) < o.Requests {
		s := g.open.Pop()
		t.Requests = append(t.Requests, g.turn(s, first))
		g.open.Push(s)
	}
	t.DistinctBlocks, t.Conversations = int(g.next), int(g.sessions)
	return t, nil
}

// meanInterval is the mean time between two turns of an agent, in seconds.
func (g *generator) meanInterval() float64 { return float64(g.o.Agents) / g.o.RequestsPerS }

// begin opens a session of an agent.
func (g *generator) begin(s *session) {
	mean := float64(g.o.MeanPromptTokens)
	s.number, s.opens, s.blocks = g.sessions, true, nil
	g.sessions++
	s.kind = g.rand.IntN(g.o.Kinds)
	s.context = g.systemBlocks()*g.o.BlockTokens + int((firstPart-systemPart)*mean*g.spread())
	s.limit = int(limitMean * mean * (1 + limitSpread*(2*g.rand.Float64()-1)))
}

func (g *generator) systemBlocks() int {
	return int(systemPart*float64(g.o.MeanPromptTokens)) / g.o.BlockTokens
}

// spread returns a random factor of mean 1, not less than 0.1.
func (g *generator) spread() float64 { return 0.1 + 0.9*g.rand.ExpFloat64() }

// turn returns the next request of a session, and prepares the one after it.
func (g *generator) turn(s *session, first float64) replay.Request {
	g.extend(s)
	r := replay.Request{
		At: s.at - first, InputTokens: s.context, OutputTokens: 1 + int(float64(g.o.MeanOutputTokens-1)*g.spread()),
		Blocks: s.blocks[:len(s.blocks):len(s.blocks)], Conversation: s.number, FirstTurn: s.opens,
	}
	s.opens = false
	// With the first prompt, which is new beyond the system prompt, the part of new tokens comes out as wanted.
	growth := (1 - g.o.Reuse) * float64(g.o.MeanPromptTokens) * (limitMean - firstPart) / (limitMean - systemPart)
	s.context += max(int(growth*g.spread()), 1)
	if s.context > s.limit {
		g.begin(s)
	}
	interval := g.meanInterval() / (1 - pausePart + pausePart*pauseLonger) * g.rand.ExpFloat64()
	if g.rand.Float64() < pausePart {
		interval *= pauseLonger
	}
	s.at += interval
	return r
}

// extend gives a session the full blocks of its context.
func (g *generator) extend(s *session) {
	if s.blocks == nil {
		system := &g.systems[s.kind]
		for len(*system) < g.systemBlocks() {
			*system = append(*system, g.next)
			g.next++
		}
		s.blocks = append(s.blocks, *system...)
	}
	for len(s.blocks) < s.context/g.o.BlockTokens {
		s.blocks = append(s.blocks, g.next)
		g.next++
	}
}
