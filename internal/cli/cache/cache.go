// Package cache is `kvconnd cache`: what a running daemon's store holds, by model and namespace.
package cache

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/kvconn/kvconn/internal/cli/settings"
	"github.com/kvconn/kvconn/internal/cli/target"
	"github.com/kvconn/kvconn/internal/daemon/admin"
	"github.com/kvconn/kvconn/internal/httpserve"
	"github.com/kvconn/kvconn/internal/locate"
)

// Cmd is `kvconnd cache`.
type Cmd struct {
	LS lsCmd `cmd:"" name:"ls" help:"List what the store of a running daemon holds, by model and namespace."`
	RM rmCmd `cmd:"" name:"rm" help:"Remove what disk and host tier of a running daemon hold of models, namespaces or a prompt."`

	Pin    pinCmd    `cmd:"" help:"Keep what the disk has of a model, a namespace or a prompt from being evicted, for a time."`
	Unpin  unpinCmd  `cmd:"" help:"End pins before their time."`
	Warm   warmCmd   `cmd:"" help:"Load a prompt, or what was used most recently, into host memory."`
	Export exportCmd `cmd:"" help:"Write the records of a model or a namespace to a file."`
	Import importCmd `cmd:"" help:"Put the records of a file into the store."`
	Pins   pinsCmd   `cmd:"" help:"List what is pinned."`
}

// where says which daemon is asked.
type where struct{ target.Daemon }

// client asks one daemon.
type client struct {
	base string
	http *http.Client
}

// find finds the daemon.
func (w *where) find(ctx context.Context, command *kong.Context, resolver *settings.Resolver) (*client, error) {
	return connect(ctx, w.At(command, resolver))
}

// connect makes sure that it is the right daemon that answers.
func connect(ctx context.Context, at locate.Settings) (*client, error) {
	address, _, err := at.Daemon(ctx)
	if err != nil {
		return nil, err
	}
	if !strings.Contains(address, "://") {
		address = "http://" + address
	}
	return &client{base: strings.TrimSuffix(address, "/"), http: httpserve.Client(at.Token)}, nil
}

const (
	// maxAnswerBytes bounds an answer: 65,536 namespaces, the most that a store can number, and much room.
	maxAnswerBytes = 256 << 20
	// maxErrorBytes bounds what is shown of a refusal.
	maxErrorBytes = 4 << 10
)

// ask sends a request without a body and decodes its answer.
func (c *client) ask(ctx context.Context, method, path string, answer any) error {
	return c.send(ctx, method, path, http.NoBody, answer)
}

// send sends a request with a body of JSON, and decodes its answer.
func (c *client) send(ctx context.Context, method, path string, body io.Reader, answer any) error {
	resp, err := c.open(ctx, method, path, body)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxAnswerBytes)).Decode(answer); err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	return nil
}

// open sends a request with a body of JSON. The caller closes the answer, which is no refusal.
func (c *client) open(ctx context.Context, method, path string, body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, body)
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", c.base, err)
	}
	if body != http.NoBody {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", c.base, err)
	}
	if resp.StatusCode != http.StatusOK {
		defer func() { _ = resp.Body.Close() }()
		b, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorBytes))
		return nil, refusal(path, resp, printable(strings.TrimSpace(string(b))))
	}
	return resp, nil
}

// errGone says that there is no such namespace.
var errGone = errors.New("there is no such namespace")

func refusal(path string, resp *http.Response, text string) error {
	if resp.StatusCode == http.StatusNotFound && strings.HasPrefix(text, "no namespace") {
		return errGone
	}
	if resp.StatusCode == http.StatusNotFound && strings.HasPrefix(text, "no ") { // what was asked for is not there
		return errors.New(text)
	}
	if resp.StatusCode == http.StatusNotFound || resp.StatusCode == http.StatusMethodNotAllowed {
		return fmt.Errorf("%s does not know %s: it may be older than this command", resp.Request.URL.Host, path)
	}
	if text == "" {
		text = resp.Status
	}
	return errors.New(text)
}

// remove has one namespace removed.
func (c *client) remove(ctx context.Context, digest string) (*admin.Removal, error) {
	r := new(admin.Removal)
	return r, c.ask(ctx, http.MethodDelete, "/v1/namespaces/"+url.PathEscape(digest), r)
}

// namespaces asks for the list.
func (c *client) namespaces(ctx context.Context) (*admin.List, error) {
	l := new(admin.List)
	return l, c.ask(ctx, http.MethodGet, "/v1/namespaces", l)
}
