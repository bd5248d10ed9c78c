package enginebench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Bounds of what an endpoint may answer.
const (
	maxLineBytes  = 1 << 20
	maxListBytes  = 8 << 20
	maxErrorBytes = 4 << 10
	shownBytes    = 300
)

// client asks one endpoint.
type client struct {
	http    *http.Client
	base    string // up to /v1
	key     string
	model   string
	chat    bool
	outputs int
	timeout time.Duration
}

// answer is what one request brought.
type answer struct {
	// firstToken and total are the times to the first token and to the end.
	firstToken, total time.Duration
	// promptTokens and cachedTokens are what the endpoint says, 0 if it says nothing.
	promptTokens, cachedTokens int
}

// newClient finds the endpoint's model, if none is named.
func newClient(ctx context.Context, e Endpoint, o *Options) (*client, error) {
	u, err := url.Parse(e.URL)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return nil, fmt.Errorf("%q is no URL of an endpoint: give one such as http://127.0.0.1:8000", e.URL)
	}
	if u.User != nil {
		return nil, errors.New("a URL with a user or password would be printed: give the endpoint's API key")
	}
	base := strings.TrimSuffix(strings.TrimRight(e.URL, "/"), "/v1") + "/v1"
	c := &client{
		base: base, key: e.Key, model: e.Model, chat: o.Chat, outputs: o.OutputTokens, timeout: o.Timeout,
		// The key must reach nobody but the endpoint.
		http: &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
	}
	if c.model == "" {
		c.model, err = c.firstModel(ctx)
	}
	return c, err
}

func (c *client) firstModel(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	resp, err := c.send(ctx, http.MethodGet, "/models", nil)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxListBytes)).Decode(&list); err != nil {
		return "", fmt.Errorf("%s/models: %w: name the model", c.base, err)
	}
	if len(list.Data) == 0 {
		return "", fmt.Errorf("%s/models lists no model: name one", c.base)
	}
	return list.Data[0].ID, nil
}

// ask sends a prompt and reads the answer to its end.
func (c *client) ask(ctx context.Context, text string) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	body, err := json.Marshal(c.request(text))
	if err != nil {
		return answer{}, err
	}
	path := "/completions"
	if c.chat {
		path = "/chat/completions"
	}
	began := time.Now()
	resp, err := c.send(ctx, http.MethodPost, path, body)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	a, err := read(resp.Body, began)
	if err != nil {
		return a, fmt.Errorf("%s%s: %w", c.base, path, err)
	}
	return a, nil
}

// request is the body of a request, in the dialect that engines have in common.
func (c *client) request(text string) map[string]any {
	r := map[string]any{
		"model": c.model, "max_tokens": c.outputs, "temperature": 0, "stream": true,
		"stream_options": map[string]any{"include_usage": true},
	}
	if c.chat {
		r["messages"] = []map[string]string{{"role": "user", "content": text}}
	} else {
		r["prompt"] = text
	}
	return r
}

// send returns a good answer, or an error that says what was wrong with it.
func (c *client) send(ctx context.Context, method, path string, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.key != "" {
		req.Header.Set("Authorization", "Bearer "+c.key)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask the engine: %w", err)
	}
	if resp.StatusCode == http.StatusOK {
		return resp, nil
	}
	defer func() { _ = resp.Body.Close() }()
	text, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorBytes)) // what came says enough
	err = fmt.Errorf("%s%s: %s: %s", c.base, path, resp.Status, said(text))
	switch {
	case resp.StatusCode == http.StatusUnauthorized:
		err = fmt.Errorf("%w: give the endpoint's API key", err)
	case resp.StatusCode == http.StatusNotFound && !c.chat && path == "/completions":
		err = fmt.Errorf("%w: an endpoint with chat alone is asked with --chat", err)
	}
	return nil, err
}

// said is the message of an error's body, or the beginning of the body.
func said(body []byte) string {
	var e struct {
		Error   json.RawMessage `json:"error"`
		Message string          `json:"message"`
	}
	text := string(body)
	if json.Unmarshal(body, &e) == nil {
		var inner struct {
			Message string `json:"message"`
		}
		switch {
		case json.Unmarshal(e.Error, &inner) == nil && inner.Message != "":
			text = inner.Message
		case e.Message != "":
			text = e.Message
		}
	}
	text = strings.ToValidUTF8(strings.Join(strings.Fields(text), " "), "")
	if len(text) > shownBytes {
		text = strings.ToValidUTF8(text[:shownBytes], "") + "..."
	}
	return text
}

// chunk is an event of a stream: of completions or of chat.
type chunk struct {
	Choices []struct {
		Text  string `json:"text"`
		Delta struct {
			Content          string `json:"content"`
			Reasoning        string `json:"reasoning"`
			ReasoningContent string `json:"reasoning_content"`
		} `json:"delta"`
		FinishReason string `json:"finish_reason"`
	} `json:"choices"`
	Usage *struct {
		PromptTokens int `json:"prompt_tokens"`
		Details      *struct {
			CachedTokens int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
	Error json.RawMessage `json:"error"`
}

// token reports whether the event brings one. A role alone is none; a token without text, such as the one that ends the
// answer, comes with the reason for the end.
func (c *chunk) token() bool {
	for _, o := range c.Choices {
		if o.Text != "" || o.Delta.Content != "" || o.Delta.Reasoning != "" || o.Delta.ReasoningContent != "" || o.FinishReason != "" {
			return true
		}
	}
	return false
}

// read takes the events of a stream.
func read(body io.Reader, began time.Time) (a answer, err error) {
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, maxLineBytes)
	ended := false
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data:"))
		if !ok {
			if begin := bytes.TrimSpace(lines.Bytes()); a.firstToken == 0 && bytes.HasPrefix(begin, []byte("{")) {
				return a, errors.New("the answer is no stream of events: the endpoint does not stream")
			}
			continue
		}
		if data = bytes.TrimSpace(data); string(data) == "[DONE]" {
			ended = true
			break
		}
		var c chunk
		if err := json.Unmarshal(data, &c); err != nil {
			return a, fmt.Errorf("an event is no JSON: %w", err)
		}
		if len(c.Error) > 0 && string(c.Error) != "null" {
			return a, fmt.Errorf("the engine failed: %s", said(data))
		}
		if a.firstToken == 0 && c.token() {
			a.firstToken = time.Since(began)
		}
		if u := c.Usage; u != nil {
			a.promptTokens = u.PromptTokens
			if u.Details != nil {
				a.cachedTokens = u.Details.CachedTokens
			}
		}
	}
	a.total = time.Since(began)
	switch {
	case lines.Err() != nil:
		return a, fmt.Errorf("read the answer: %w", lines.Err())
	case a.firstToken == 0:
		return a, errors.New("the answer ended without a token")
	case !ended:
		return a, errors.New("the answer ended in the middle: no [DONE] came")
	}
	return a, nil
}
