package s3mem

import (
	"crypto/md5"
	"encoding/base64"
	"encoding/hex"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// get answers GET and HEAD of an object.
func (s *Server) get(w http.ResponseWriter, r *http.Request, bucketName, key string) *apiError {
	o, err := s.memory.get(bucketName, key)
	if err != nil {
		return err
	}
	h := w.Header()
	h.Set("ETag", o.etag)
	h.Set("Last-Modified", o.modified.UTC().Format(http.TimeFormat))
	if match := r.Header.Get("If-Match"); match != "" && !matches(match, o) {
		return errPrecondition("If-Match")
	}
	if match := r.Header.Get("If-None-Match"); match != "" && matches(match, o) {
		w.WriteHeader(http.StatusNotModified)
		return nil
	}
	from, n, status, err := span(r.Header.Get("Range"), int64(len(o.data)))
	if err != nil {
		return err
	}
	if status == http.StatusPartialContent {
		h.Set("Content-Range", "bytes "+strconv.FormatInt(from, 10)+"-"+strconv.FormatInt(from+n-1, 10)+"/"+strconv.Itoa(len(o.data)))
	}
	h.Set("Accept-Ranges", "bytes")
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Length", strconv.FormatInt(n, 10))
	w.WriteHeader(status)
	if r.Method == http.MethodHead {
		return nil
	}
	sent, _ := w.Write(o.data[from : from+n]) // the client has gone
	s.counts.add(func(c *Counts) { c.ReadBytes += uint64(sent) })
	return nil
}

// span is the part of an object that a Range header asks for. As on AWS a header that names several
// parts, or makes no sense, is as none.
func span(header string, size int64) (from, n int64, status int, err *apiError) {
	spec, found := strings.CutPrefix(header, "bytes=")
	first, last, ranged := strings.Cut(spec, "-")
	if !found || !ranged || strings.Contains(spec, ",") {
		return 0, size, http.StatusOK, nil
	}
	a, badFirst := strconv.ParseUint(first, 10, 62)
	b, badLast := strconv.ParseUint(last, 10, 62)
	switch {
	case first == "" && badLast == nil: // the last b bytes
		if b == 0 || size == 0 {
			return 0, 0, 0, errRange(size)
		}
		n = min(int64(b), size)
		return size - n, n, http.StatusPartialContent, nil
	case badFirst != nil || last != "" && (badLast != nil || b < a):
		return 0, size, http.StatusOK, nil
	case int64(a) >= size:
		return 0, 0, 0, errRange(size)
	case last == "":
		b = uint64(size) - 1
	}
	end := min(int64(b), size-1)
	return int64(a), end - int64(a) + 1, http.StatusPartialContent, nil
}

// matches reports whether a list of ETags, or *, has an object's.
func matches(list string, o *object) bool {
	for tag := range strings.SplitSeq(list, ",") {
		tag = strings.TrimSpace(tag)
		if o != nil && (tag == "*" || strings.Trim(tag, `"`) == strings.Trim(o.etag, `"`)) {
			return true
		}
	}
	return false
}

// put answers PUT of an object.
func (s *Server) put(w http.ResponseWriter, r *http.Request, bucketName, key string) *apiError {
	absent, match := r.Header.Get("If-None-Match"), r.Header.Get("If-Match")
	switch {
	case len(key) > maxKeyBytes:
		return errKeyTooLong()
	case r.Header.Get("X-Amz-Copy-Source") != "":
		return errNotImplemented("the copy of an object")
	case strings.HasPrefix(r.Header.Get("X-Amz-Content-Sha256"), "STREAMING-"):
		return errNotImplemented("a body in signed chunks")
	case r.ContentLength < 0:
		return errNoLength()
	case s.opts.Conditions == Refused && absent+match != "":
		return errNotImplemented("a condition on a PUT")
	case absent != "" && absent != "*":
		return errNotImplemented("If-None-Match of a PUT with anything but *")
	case !s.memory.has(bucketName):
		return errNoSuchBucket()
	}
	cost := (&object{}).cost(key) + r.ContentLength
	if !s.memory.reserve(cost) {
		return errFull(s.opts.MaxBytes)
	}
	o, err := s.read(r)
	if err == nil {
		err = s.memory.put(bucketName, key, o, func(now *object) *apiError {
			return s.allowed(absent, match, now, key)
		})
	}
	if err != nil {
		s.memory.release(cost)
		return err
	}
	w.Header().Set("ETag", o.etag)
	return nil
}

// read reads the body of a PUT.
func (s *Server) read(r *http.Request) (*object, *apiError) {
	data := make([]byte, r.ContentLength)
	n, err := io.ReadFull(r.Body, data)
	s.counts.add(func(c *Counts) { c.WrittenBytes += uint64(n) })
	if err != nil {
		return nil, errIncomplete()
	}
	sum := md5.Sum(data)
	if want := r.Header.Get("Content-Md5"); want != "" && want != base64.StdEncoding.EncodeToString(sum[:]) {
		return nil, errDigest()
	}
	return &object{data: data, etag: `"` + hex.EncodeToString(sum[:]) + `"`, modified: s.opts.Now()}, nil
}

// allowed says whether a PUT may replace the object that is there now.
func (s *Server) allowed(absent, match string, now *object, key string) *apiError {
	switch {
	case s.opts.Conditions == Ignored:
	case absent != "" && now != nil:
		return errPrecondition("If-None-Match")
	case match != "" && now == nil:
		return errNoSuchKey(key)
	case match != "" && !matches(match, now):
		return errPrecondition("If-Match")
	}
	return nil
}
