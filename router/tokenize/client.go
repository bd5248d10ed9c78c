package tokenize

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"time"
)

// ErrTokenize says that no engine tokenized a prompt. Errors of contexts are wrapped beside it.
var ErrTokenize = errors.New("the prompt could not be tokenized")

// Client asks engines to tokenize. It is safe for concurrent use.
type Client struct {
	// HTTP makes the requests.
	HTTP *http.Client
	// Timeout bounds a call, for all engines that are asked.
	Timeout time.Duration
	// MaxTokens bounds an answer.
	MaxTokens int
	// Header is set on requests, such as the engines' API key; may be nil.
	Header http.Header
}

// Prompt is a text to tokenize, or the messages of a chat with the options of their template.
type Prompt struct {
	Model string
	// Text is the prompt of a completion, Messages those of a chat as JSON; one of them.
	Text     string
	Messages json.RawMessage
	// Options are further fields of the request that tokenizing depends on, such as tools and
	// chat_template_kwargs.
	Options map[string]json.RawMessage
}

// body is the request to an engine. Options are those that vLLM's tokenizer knows.
func (p *Prompt) body() ([]byte, error) {
	fields := make(map[string]any, len(p.Options)+2)
	for _, name := range [...]string{
		"add_special_tokens", "add_generation_prompt", "continue_final_message", "chat_template",
		"chat_template_kwargs", "tools", "mm_processor_kwargs",
	} {
		if v, ok := p.Options[name]; ok {
			fields[name] = v
		}
	}
	if p.Model != "" {
		fields["model"] = p.Model
	}
	if p.Messages != nil {
		fields["messages"] = p.Messages
	} else {
		fields["prompt"] = p.Text
	}
	return json.Marshal(fields)
}

// maxTries is how many engines are asked for one prompt.
const maxTries = 2

// Tokens asks the engines in turn, the first two of them, until one answers. The error wraps
// [ErrTokenize], or is [ErrTooLong].
func (c *Client) Tokens(ctx context.Context, endpoints []string, p *Prompt) ([]uint32, error) {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	body, err := p.body()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrTokenize, err)
	}
	err = errors.New("no engine is ready")
	for _, endpoint := range endpoints[:min(len(endpoints), maxTries)] {
		var tokens []uint32
		if tokens, err = c.ask(ctx, endpoint, body); err == nil {
			return tokens, nil
		}
		if errors.Is(err, ErrTooLong) {
			return nil, err
		}
		if ctx.Err() != nil {
			break
		}
	}
	return nil, fmt.Errorf("%w: %w", ErrTokenize, err)
}

func (c *Client) ask(ctx context.Context, endpoint string, body []byte) ([]uint32, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, endpoint+"/tokenize", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	maps.Copy(req.Header, c.Header)
	req.Header.Set("Content-Type", "application/json")
	// It is not sent. With it the transport tries again on a new connection if the engine closed an idle one.
	req.Header["Idempotency-Key"] = nil
	resp, err := c.HTTP.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	// A token id has at most ten digits; token_strs and the rest are not asked for.
	limit := int64(c.MaxTokens)*12 + 1<<16
	data, err := io.ReadAll(io.LimitReader(resp.Body, limit))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s/tokenize: %s: %.200q", endpoint, resp.Status, data)
	}
	var answer struct {
		Tokens json.RawMessage `json:"tokens"`
	}
	if err := json.Unmarshal(data, &answer); err != nil {
		return nil, fmt.Errorf("%s/tokenize: %w", endpoint, err)
	}
	tokens, err := AppendIDs([]uint32{}, answer.Tokens, c.MaxTokens)
	switch {
	case errors.Is(err, ErrTooLong):
		return nil, err
	case err != nil:
		return nil, fmt.Errorf("%s/tokenize: %w", endpoint, err)
	}
	return tokens, nil
}

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
	if first, several = FirstOf(raw); first == nil {
		return nil, false, fmt.Errorf("%w: prompt is not a list", ErrPrompt)
	}
	return first, several, nil
}

// FirstOf is the first element of a JSON array, nil if there is none, and whether more follow. Those are not read: they
// would take much more memory than their text.
func FirstOf(array []byte) (first json.RawMessage, more bool) {
	dec := json.NewDecoder(bytes.NewReader(array))
	if open, err := dec.Token(); err != nil || open != json.Delim('[') || !dec.More() || dec.Decode(&first) != nil {
		return nil, false
	}
	return first, dec.More()
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
