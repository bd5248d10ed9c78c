package fsck

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kvconn/kvconn/store/object/bucket"
	"github.com/kvconn/kvconn/store/object/follow"
	"github.com/kvconn/kvconn/store/object/format"
)

const (
	// listObjects are listed at one time.
	listObjects = 10_000
	// listsAtOnce bounds the memory of lists: a part may have 64 MiB, and more than that decoded.
	listsAtOnce = 4
)

// listAll lists all that is below the prefix.
func (c *check) listAll(ctx context.Context) error {
	for after, more := "", true; more; {
		page, err := c.o.Client.List(ctx, format.Root, after, listObjects)
		if err != nil {
			return fmt.Errorf("list the bucket: %w", err)
		}
		for i := range page {
			c.sort(&page[i])
		}
		if more = len(page) == listObjects; more {
			after = page[len(page)-1].Name
		}
	}
	return nil
}

// sort puts an object where it is checked.
func (c *check) sort(m *bucket.Meta) {
	name, err := format.ParseName(m.Name)
	switch {
	case err != nil:
		c.found(m.Name, Foreign, nil)
	case name.Kind == format.KindData:
		c.listed[name.Object] = listed{m.Bytes, m.Modified.IsZero() || m.Now.Sub(m.Modified) < c.o.OrphanAge}
		c.report.Objects++
		c.report.Bytes += m.Bytes
	case name.Kind == format.KindIn || name.Kind == format.KindLog || name.Kind == format.KindPart || name.Kind == format.KindNamespace:
		c.lists = append(c.lists, *m)
		if name.Kind == format.KindLog {
			c.logs = append(c.logs, name.Number)
		}
	}
}

// checkFiles checks the small files.
func (c *check) checkFiles(ctx context.Context) error {
	b, err := c.file(ctx, format.FormatFile, format.KindFormat)
	if err != nil {
		return fmt.Errorf("%s, without which the bucket cannot be read: %w", format.FormatFile, err)
	}
	note, err := format.DecodeNote(b)
	switch {
	case err != nil:
		return fmt.Errorf("%s, without which the bucket cannot be read: %w", format.FormatFile, err)
	case note.Bucket != c.o.Verifier.Bucket:
		return fmt.Errorf("%s: the bucket is another one than before", format.FormatFile)
	}
	if b, err = c.file(ctx, format.LeaseFile, format.KindLease); err == nil {
		_, err = format.DecodeLease(b)
	}
	if err != nil && !errors.Is(err, bucket.ErrMissing) {
		c.judge(format.LeaseFile, err)
	}
	return ctx.Err()
}

// readHead reads the head. What is missing afterwards was missing then: parts and log objects stay for an
// hour when a new head has made them superfluous.
func (c *check) readHead(ctx context.Context) (h format.Head, err error) {
	b, err := c.file(ctx, format.HeadFile, format.KindHead)
	if err != nil {
		return h, err
	}
	return format.DecodeHead(b, c.o.Verifier.Bucket)
}

// checkHead checks the head, that the parts which it names are there, and that the log goes on where they
// end. err is that of reading it.
func (c *check) checkHead(h *format.Head, err error) {
	parts := make(map[string]int64)
	for i := range c.lists {
		if strings.HasPrefix(c.lists[i].Name, format.PartPrefix) {
			parts[c.lists[i].Name] = c.lists[i].Bytes
		}
	}
	switch {
	case errors.Is(err, bucket.ErrMissing) && len(parts) == 0: // nothing was folded yet
	case err != nil:
		what := c.judge(format.HeadFile, err)
		c.headBad = what == Missing || what == Damaged
		return
	}
	for i := range h.Parts {
		p := &h.Parts[i]
		name := p.Name.String()
		switch bytes, there := parts[name]; {
		case !there:
			c.found(name, Missing, errors.New("the head names it"))
		case bytes != p.Bytes:
			c.found(name, WrongSize, fmt.Errorf("%d bytes, the head says %d", bytes, p.Bytes))
		default:
			continue
		}
		c.headBad = true
	}
	slices.Sort(c.logs)
	next := h.Last + 1
	for _, n := range c.logs {
		if n > next {
			c.found(format.LogName(next).String(), Gap, fmt.Errorf("the log goes on with %d", n))
		}
		next = max(next, n+1)
	}
}

// file reads a small file.
func (c *check) file(ctx context.Context, name string, kind format.Kind) ([]byte, error) {
	b, _, err := follow.Read(ctx, c.o.Client, name, kind)
	return b, err
}

// checkLists reads and verifies all lists.
func (c *check) checkLists(ctx context.Context) error {
	tasks := make([]task, 0, len(c.lists))
	for i := range c.lists {
		tasks = append(tasks, task{name: c.lists[i].Name})
	}
	return c.each(ctx, tasks, min(c.o.Parallel, listsAtOnce), c.checkList)
}

func (c *check) checkList(ctx context.Context, t task) {
	name, err := format.ParseName(t.name)
	if err != nil {
		return
	}
	s, err := follow.ReadList(ctx, c.o.Client, name, c.o.Verifier.Bucket, c.o.Verifier.Opener.Ring)
	if err == nil {
		err = s.Bad
	}
	switch {
	case errors.Is(err, bucket.ErrMissing): // merged or folded meanwhile
	case err != nil:
		c.judge(t.name, err)
	default:
		c.count(func(r *Report) {
			r.Lists[kindName(name.Kind)]++
			if name.Kind == format.KindIn {
				for i := range s.List.Objects {
					c.waiting[s.List.Objects[i].ID] = int64(s.List.Objects[i].Bytes)
				}
			}
		})
	}
}

func kindName(k format.Kind) string {
	return map[format.Kind]string{
		format.KindIn: "in", format.KindLog: "log", format.KindPart: "part", format.KindNamespace: "namespace",
	}[k]
}
