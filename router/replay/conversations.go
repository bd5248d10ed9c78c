package replay

// chats collects the conversations of a trace while it is read.
type chats struct {
	byID     map[string]int32 // by session or chat id
	next     int32
	recorded bool
}

// add takes the conversation of a request from its line, and whether the request opens it. A request without any is
// one of its own.
func (c *chats) add(l *line) (conversation int32, first bool) {
	session, own := text(l.SessionID), text(l.ChatID)
	known := false
	switch {
	case session != "":
		conversation, known = c.byID["session "+session]
	case own != "":
		if conversation, known = c.byID["chat "+text(l.ParentChatID)]; !known {
			conversation, known = c.byID["chat "+own]
		}
	}
	if !known {
		conversation = c.next
		c.next++
	}
	switch {
	case session != "":
		c.byID["session "+session] = conversation
	case own != "":
		c.byID["chat "+own] = conversation
	}
	c.recorded = c.recorded || session != "" || own != ""
	return conversation, !known
}

// text returns a JSON value as it stands, "" for none.
func text(raw []byte) string {
	if string(raw) == "null" {
		return ""
	}
	return string(raw)
}

// finish sets the number of conversations, and finds those of all requests if no line names one.
func (c *chats) finish(t *Trace) {
	if !c.recorded {
		t.deriveConversations()
		return
	}
	t.Conversations, t.Source = int(c.next), ConversationsRecorded
}

// A block at the head of more than one in commonPart requests, and of more than commonLeast, is taken for
// part of a common system prompt.
const (
	commonPart  = 100
	commonLeast = 8
)

// deriveConversations finds the conversations from their prompts; see [Trace.Conversations].
func (t *Trace) deriveConversations() {
	uses := make([]int32, t.DistinctBlocks)
	for i := range t.Requests {
		for _, b := range t.Requests[i].Blocks {
			uses[b]++
		}
	}
	common := int32(max(len(t.Requests)/commonPart, commonLeast))
	ends := make([]int32, t.DistinctBlocks) // conversation of the latest prompt whose full blocks end here, plus 1
	next := int32(0)
	for i := range t.Requests {
		r := &t.Requests[i]
		r.FirstTurn = true
		for k := len(r.Blocks) - 1; k >= 0 && r.FirstTurn && uses[r.Blocks[k]] <= common; k-- {
			if c := ends[r.Blocks[k]]; c > 0 {
				r.Conversation, r.FirstTurn = c-1, false
			}
		}
		if r.FirstTurn {
			r.Conversation = next
			next++
		}
		if full := min(r.InputTokens/t.BlockTokens, len(r.Blocks)); full > 0 {
			ends[r.Blocks[full-1]] = r.Conversation + 1
		}
	}
	t.Conversations, t.Source = int(next), ConversationsDerived
}
