package cache

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
)

// maxPromptBytes bounds a prompt.
const maxPromptBytes = 64 << 20

// readTokens reads a prompt: a JSON list of token ids, or text that an engine makes tokens of. The file - is in.
func readTokens(ctx context.Context, in io.Reader, model, file, engineURL string) (tokens []uint32, err error) {
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, err
		}
		defer func() { _ = f.Close() }()
		in = f
	}
	b, err := io.ReadAll(io.LimitReader(in, maxPromptBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read the prompt: %w", err)
	}
	if len(b) > maxPromptBytes {
		return nil, fmt.Errorf("the prompt has more than %d bytes", maxPromptBytes)
	}
	if engineURL != "" {
		engine := &client{base: strings.TrimSuffix(engineURL, "/"), http: new(http.Client)}
		var answer struct {
			Tokens []uint32 `json:"tokens"`
		}
		if err := engine.post(ctx, "/tokenize", map[string]string{"model": model, "prompt": string(b)}, &answer); err != nil {
			return nil, fmt.Errorf("ask %s for tokens: %w", engineURL, err)
		}
		return answer.Tokens, nil
	}
	if err := json.Unmarshal(b, &tokens); err != nil {
		return nil, fmt.Errorf("%s is no JSON list of token ids; for text give --engine: %w", file, err)
	}
	return tokens, nil
}
