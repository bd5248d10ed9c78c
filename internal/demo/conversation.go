package demo

import (
	"fmt"
	"strings"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/engine"
)

// answerTokens is the length of every answer.
const answerTokens = 24

// conversation is a dialogue that begins with the system prompt all share.
type conversation struct {
	name  string
	turns []string
}

// systemPrompt is what every conversation begins with: the long, shared part that makes
// a cache worth having.
func systemPrompt() string {
	var b strings.Builder
	b.WriteString("You are the assistant of a shipyard. Answer briefly, from the rules below, and say so when they are silent.\n")
	for i, rule := range []string{
		"A hull is surveyed before it enters the dock and again before it leaves.",
		"Work above two metres needs a harness and a second person within sight.",
		"Nobody welds within ten metres of an open paint store.",
		"Steel plates are numbered when they arrive, and the number follows the plate.",
		"The tide table on the harbour board is the only one that counts.",
		"A crane lifts nothing while the wind is above force six.",
		"Every valve that is opened is logged with the time and a name.",
		"Visitors wear a yellow helmet and are never left alone.",
		"Batteries are charged outdoors, under the roof by the north gate.",
		"Tools are counted at the end of a shift, and a missing one is searched for at once.",
	} {
		fmt.Fprintf(&b, "Rule %d. %s\n", i+1, rule)
	}
	return b.String()
}

func conversations() []conversation {
	return []conversation{
		{"dock", []string{
			"The survey of the ferry was done last week, before she came into the dock. May she leave tomorrow morning?",
			"The surveyor has the flu. Who may stand in for him, and what has to be written down?",
			"Thank you. Remind me what else has to be looked at before the gates are opened.",
		}},
		{"crane", []string{
			"The forecast says force five in the morning and force seven after noon. When do we lift the engine?",
			"The lorry with the engine is late and comes at eleven. What do I tell the crew of the crane?",
		}},
		{"stores", []string{
			"A plate without a number lies beside the paint store, and somebody wants to weld there. What now?",
			"We have found the delivery note. Which of the numbers on it do we put on the plate?",
		}},
	}
}

// turnTokens is all that was said so far, and the user's new line.
func turnTokens(history []uint32, line string) []uint32 {
	return append(append([]uint32(nil), history...), engine.EncodeText("\nUser: "+line+"\nAssistant: ")...)
}

func blockKey(tokens []uint32, blockSize, i int) connector.Key {
	key := connector.RootKey(blockSize, connector.Scope{})
	var scratch []byte
	for j := range i + 1 {
		key, scratch = connector.NextKey(key, connector.AppendTokens(nil, tokens[j*blockSize:(j+1)*blockSize]), scratch)
	}
	return key
}
