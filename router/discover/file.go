package discover

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/kvconn/kvconn/internal/sleep"
	"github.com/kvconn/kvconn/router/registry"
)

const (
	// maxFileBytes bounds a file of ranks: 4,096 ranks of a KiB.
	maxFileBytes = 4 << 20
	// settle is how long a file has to stay the same before it counts: an editor may be writing it.
	settle = 100 * time.Millisecond
)

// watchFile reads a file again and again. It reads the content instead of waiting for the kernel's events: files of a
// ConfigMap are links that are swapped, and network file systems have no events.
func watchFile(ctx context.Context, s *Source, to sink) {
	var last []byte
	first := true
	for {
		b, err := readBounded(s.File)
		if err == nil && (first || !bytes.Equal(b, last)) {
			if b, err = settled(ctx, s.File, b); err == nil {
				var ranks []registry.Rank
				if ranks, err = parseFile(b); err == nil {
					last, first = b, false
					to.found(ranks, nil)
				}
			}
		} else if err == nil {
			to.works() // the old content is back
		}
		if err != nil {
			to.failed(err)
		}
		if !sleep.For(ctx, time.Duration(s.Interval), nil) {
			return
		}
	}
}

// settled returns a file's content once two readings are the same.
func settled(ctx context.Context, path string, b []byte) ([]byte, error) {
	for {
		if !sleep.For(ctx, settle, nil) {
			return nil, ctx.Err()
		}
		again, err := readBounded(path)
		if err != nil || bytes.Equal(again, b) {
			return again, err
		}
		b = again
	}
}

func readBounded(path string) (b []byte, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe would be waited for
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if info, err := f.Stat(); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	b, err = io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err == nil && len(b) > maxFileBytes {
		err = fmt.Errorf("%s has more than %d bytes", path, maxFileBytes)
	}
	return b, err
}

// parseFile reads a file's ranks. No two may be the same. A rank without an id has the id -1.
func parseFile(b []byte) ([]registry.Rank, error) {
	var content struct {
		Ranks *[]map[string]any `yaml:"ranks"`
	}
	dec := yaml.NewDecoder(bytes.NewReader(b))
	dec.KnownFields(true)
	if err := dec.Decode(&content); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one document")
	}
	if content.Ranks == nil { // an empty file is more likely an accident than a list without ranks
		return nil, errors.New("the list ranks is missing; write 'ranks: []' for none")
	}
	if len(*content.Ranks) > maxFound {
		return nil, fmt.Errorf("%d ranks, at most %d", len(*content.Ranks), maxFound)
	}
	var list []registry.Rank
	seen := make(map[string]int)
	for i, fields := range *content.Ranks {
		j, err := json.Marshal(fields)
		if err != nil {
			return nil, fmt.Errorf("ranks[%d]: %w", i, err)
		}
		r, err := registry.Parse(j)
		if err != nil {
			return nil, fmt.Errorf("ranks[%d]: %w", i, err)
		}
		if _, given := fields["id"]; !given {
			r.ID = noID
		}
		key := keyOf(&r)
		if before, twice := seen[key]; twice {
			return nil, fmt.Errorf("ranks[%d] is the same as ranks[%d]", i, before)
		}
		seen[key] = i
		list = append(list, r)
	}
	return list, nil
}
