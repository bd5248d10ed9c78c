package tokenize

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
)

// ErrPrompt says that a request has no prompt that could be understood.
var ErrPrompt = errors.New("no prompt")

// Found is the prompt that was found in a request.
type Found struct {
	// IDs are its tokens; nil if it could not be tokenized. Then Fallback says why, and Length is an
	// estimate of their number.
	IDs      []uint32
	Length   int
	Fallback error
	// Several says that the request has more prompts; this is the first.
	Several bool
}

// bytesPerToken is the approximate length of a token of text in most languages and tokenizers.
const bytesPerToken = 4

// Resolve finds the tokens of a completion request, given as its JSON fields: "token_ids", or "prompt" as
// text, token ids, or a list of either, or "messages". Text is tokenized by the engines that endpoints
// returns. An engine that fails or is slow is no error: see [Found]. The error is [ErrPrompt] or [ErrTooLong].
func (c *Client) Resolve(ctx context.Context, model string, fields map[string]json.RawMessage, endpoints func() []string) (Found, error) {
	if raw, ok := field(fields, "token_ids"); ok {
		return c.ids(raw)
	}
	if raw, ok := field(fields, "messages"); ok {
		if raw[0] != '[' {
			return Found{}, fmt.Errorf("%w: messages is not a list", ErrPrompt)
		}
		return c.text(ctx, &Prompt{Model: model, Messages: raw, Options: fields}, len(raw), endpoints)
	}
	raw, ok := field(fields, "prompt")
	if !ok {
		return Found{}, fmt.Errorf("%w: give token_ids, prompt or messages", ErrPrompt)
	}
	first, several, err := firstPrompt(raw)
	if err != nil {
		return Found{}, err
	}
	var f Found
	if first[0] == '"' {
		var text string
		if err := json.Unmarshal(first, &text); err != nil {
			return Found{}, fmt.Errorf("%w: %w", ErrPrompt, err)
		}
		f, err = c.text(ctx, &Prompt{Model: model, Text: text, Options: fields}, len(text), endpoints)
	} else {
		f, err = c.ids(first)
	}
	if err != nil {
		return Found{}, err
	}
	f.Several = several
	return f, nil
}

func field(fields map[string]json.RawMessage, name string) (json.RawMessage, bool) {
	raw := bytes.TrimSpace(fields[name])
	return raw, len(raw) > 0 && !bytes.Equal(raw, []byte("null"))
}

// firstPrompt is the first of a list of texts or of lists of ids, or the prompt itself.
func firstPrompt(raw json.RawMessage) (first json.RawMessage, several bool, err error) {
	if raw[0] != '[' {
		if raw[0] != '"' {
			return nil, false, fmt.Errorf("%w: prompt is neither text nor a list", ErrPrompt)
		}
		return raw, false, nil
	}
	inner := bytes.TrimSpace(raw[1:])
	if len(inner) == 0 || inner[0] != '"' && inner[0] != '[' {
		return raw, false, nil // ids
	}
	var list []json.RawMessage
	if err := json.Unmarshal(raw, &list); err != nil || len(list) == 0 {
		return nil, false, fmt.Errorf("%w: prompt is not a list", ErrPrompt)
	}
	return list[0], len(list) > 1, nil
}

func (c *Client) ids(raw json.RawMessage) (Found, error) {
	ids, err := AppendIDs(make([]uint32, 0, len(raw)/5+1), raw, c.MaxTokens)
	switch {
	case errors.Is(err, ErrTooLong):
		return Found{}, err
	case err != nil:
		return Found{}, fmt.Errorf("%w: %w", ErrPrompt, err)
	}
	return Found{IDs: ids, Length: len(ids)}, nil
}

func (c *Client) text(ctx context.Context, p *Prompt, size int, endpoints func() []string) (Found, error) {
	ids, err := c.Tokens(ctx, endpoints(), p)
	switch {
	case errors.Is(err, ErrTooLong):
		return Found{}, err
	case err != nil:
		return Found{Length: min(size/bytesPerToken, c.MaxTokens), Fallback: err}, nil
	}
	return Found{IDs: ids, Length: len(ids)}, nil
}
