package discover

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/kvconn/kvconn/internal/sleep"
)

// endpointSlice is what is used of an EndpointSlice (discovery.k8s.io/v1).
type endpointSlice struct {
	Metadata struct {
		Name            string `json:"name"`
		ResourceVersion string `json:"resourceVersion"`
	} `json:"metadata"`
	AddressType string     `json:"addressType"`
	Endpoints   []endpoint `json:"endpoints"`
	// bytes is how long it was as JSON.
	bytes int
}

// endpoint is one of a slice. A condition that is not given counts as the API says: ready and serving, not terminating.
type endpoint struct {
	Addresses  []string `json:"addresses"`
	Conditions struct {
		Ready       *bool `json:"ready"`
		Serving     *bool `json:"serving"`
		Terminating *bool `json:"terminating"`
	} `json:"conditions"`
	NodeName  string `json:"nodeName"`
	TargetRef struct {
		UID string `json:"uid"`
	} `json:"targetRef"`
}

func (e *endpoint) ready() bool { return e.Conditions.Ready == nil || *e.Conditions.Ready }
func (e *endpoint) terminating() bool {
	return e.Conditions.Terminating != nil && *e.Conditions.Terminating
}

func (e *endpoint) serving() bool {
	if e.Conditions.Serving == nil {
		return e.ready()
	}
	return *e.Conditions.Serving
}

// follower keeps the EndpointSlices of one service.
type follower struct {
	cluster            *Cluster
	namespace, service string
	slices             map[string]endpointSlice
	version            string
	// bytes is what the slices were as JSON.
	bytes int
}

const (
	// maxSlices bounds the slices of one service, of 100 engines each by default, and maxTotalBytes all of them as JSON:
	// 4,096 engines have about 2 MB.
	maxSlices     = 4096
	maxTotalBytes = 64 << 20
	// maxPages bounds the pages of a list: a server that filters may send some without slices.
	maxPages = 1000
)

// maxPause bounds the time between tries.
const maxPause = time.Minute

// follow lists and watches until ctx ends. It calls changed after each change, and failed after each try that failed.
func (f *follower) follow(ctx context.Context, changed func(), failed func(error)) {
	pause, expired := f.cluster.Pause, false
	for ctx.Err() == nil {
		start := time.Now()
		err := f.once(ctx, changed)
		// Versions end. It is an error if the list that has to follow ends so as well.
		first := f.version != "" || !expired
		expired = errors.Is(err, errExpired)
		if expired && first {
			f.version = ""
		} else if err != nil && ctx.Err() == nil {
			failed(fmt.Errorf("endpoints of %s/%s: %w", f.namespace, f.service, err))
			f.version = ""
		}
		if err == nil || time.Since(start) > maxPause { // a watch ended in its time, or had worked
			pause = f.cluster.Pause
		}
		if !sleep.For(ctx, pause, nil) {
			return
		}
		if err != nil {
			pause = min(2*pause, maxPause)
		}
	}
}

// once lists unless the version is known, and watches once.
func (f *follower) once(ctx context.Context, changed func()) error {
	client, err := f.cluster.client()
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	if f.version == "" {
		if err := f.list(ctx, client); err != nil {
			return err
		}
		changed()
	}
	return f.watch(ctx, client, changed)
}

// list reads all slices, page by page.
func (f *follower) list(ctx context.Context, client *http.Client) error {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	all, query := follower{slices: make(map[string]endpointSlice)}, url.Values{"limit": {pageSize}}
	for range maxPages {
		body, err := f.cluster.get(ctx, client, f.namespace, f.service, query)
		if err != nil {
			return err
		}
		var page struct {
			Metadata struct {
				ResourceVersion string `json:"resourceVersion"`
				Continue        string `json:"continue"`
			} `json:"metadata"`
			Items []json.RawMessage `json:"items"`
		}
		bounded := io.LimitedReader{R: body, N: maxListBytes}
		err = json.NewDecoder(&bounded).Decode(&page)
		if err != nil && bounded.N <= 0 {
			err = fmt.Errorf("a page has more than %d bytes", maxListBytes)
		}
		if err = errors.Join(err, body.Close()); err != nil {
			return fmt.Errorf("list: %w", err)
		}
		for _, item := range page.Items {
			var s endpointSlice
			if err := json.Unmarshal(item, &s); err != nil {
				return fmt.Errorf("list: %w", err)
			}
			if err := all.put(s, len(item)); err != nil {
				return fmt.Errorf("list: %w", err)
			}
		}
		if page.Metadata.Continue == "" {
			if page.Metadata.ResourceVersion == "" {
				return errors.New("the list has no version")
			}
			f.slices, f.bytes, f.version = all.slices, all.bytes, page.Metadata.ResourceVersion
			return nil
		}
		query.Set("continue", page.Metadata.Continue)
	}
	return fmt.Errorf("list: more than %d pages", maxPages)
}

// put keeps a slice that had a number of bytes, unless a bound is passed.
func (f *follower) put(s endpointSlice, bytes int) error {
	old, known := f.slices[s.Metadata.Name]
	switch {
	case !known && len(f.slices) >= maxSlices:
		return fmt.Errorf("more than %d slices", maxSlices)
	case f.bytes-old.bytes+bytes > maxTotalBytes:
		return fmt.Errorf("the slices have more than %d bytes", maxTotalBytes)
	}
	s.bytes = bytes
	f.bytes += bytes - old.bytes
	f.slices[s.Metadata.Name] = s
	return nil
}

// watch follows changes until the API server ends the watch.
func (f *follower) watch(ctx context.Context, client *http.Client, changed func()) error {
	ctx, cancel := context.WithTimeout(ctx, watchTime+requestTime)
	defer cancel()
	body, err := f.cluster.get(ctx, client, f.namespace, f.service, url.Values{
		"watch": {"1"}, "allowWatchBookmarks": {"true"}, "resourceVersion": {f.version},
		"timeoutSeconds": {strconv.Itoa(int(watchTime / time.Second))},
	})
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }()
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, maxEventBytes)
	for lines.Scan() {
		different, err := f.event(lines.Bytes())
		if err != nil {
			return err
		}
		if different {
			changed()
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("watch: %w", err)
	}
	return nil
}

// event takes one event of a watch, and reports whether it changed the slices.
func (f *follower) event(line []byte) (different bool, err error) {
	var e struct {
		Type   string          `json:"type"`
		Object json.RawMessage `json:"object"`
	}
	if err := json.Unmarshal(line, &e); err != nil {
		return false, fmt.Errorf("watch: %w", err)
	}
	if e.Type == "ERROR" {
		var status struct {
			Code    int    `json:"code"`
			Message string `json:"message"`
		}
		if err := json.Unmarshal(e.Object, &status); err == nil && status.Code == http.StatusGone {
			return false, errExpired
		}
		return false, fmt.Errorf("watch: %d %.512q", status.Code, status.Message)
	}
	var s endpointSlice
	if err := json.Unmarshal(e.Object, &s); err != nil {
		return false, fmt.Errorf("watch: %w", err)
	}
	switch e.Type {
	case "ADDED", "MODIFIED":
		if err := f.put(s, len(e.Object)); err != nil {
			return false, fmt.Errorf("watch: %w", err)
		}
		different = true
	case "DELETED":
		f.bytes -= f.slices[s.Metadata.Name].bytes
		delete(f.slices, s.Metadata.Name)
		different = true
	case "BOOKMARK":
	default:
		return false, fmt.Errorf("watch: event %.32q", e.Type)
	}
	if s.Metadata.ResourceVersion != "" {
		f.version = s.Metadata.ResourceVersion
	}
	return different, nil
}
