package tokenize

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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
	// chat_template_kwargs: see [OptionNames].
	Options map[string]json.RawMessage
}

// OptionNames are the fields of a completion request that its tokens depend on, beside the prompt, as
// vLLM's tokenizer knows them.
func OptionNames() []string {
	return []string{
		"add_special_tokens", "add_generation_prompt", "continue_final_message", "chat_template",
		"chat_template_kwargs", "tools", "mm_processor_kwargs",
	}
}

// body is the request to an engine.
func (p *Prompt) body() ([]byte, error) {
	fields := make(map[string]any, len(p.Options)+2)
	for _, name := range OptionNames() {
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
	for name, values := range c.Header {
		req.Header[name] = values
	}
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
