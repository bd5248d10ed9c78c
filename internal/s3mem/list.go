package s3mem

import (
	"encoding/base64"
	"encoding/xml"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// listing is what was asked of ListObjectsV2.
type listing struct {
	prefix, delimiter string
	// after is the name or the common prefix that the page comes after.
	after string
	most  int
}

type listResult struct {
	XMLName               xml.Name `xml:"http://s3.amazonaws.com/doc/2006-03-01/ ListBucketResult"`
	Name                  string
	Prefix                string
	Delimiter             string `xml:",omitempty"`
	StartAfter            string `xml:",omitempty"`
	EncodingType          string `xml:",omitempty"`
	ContinuationToken     string `xml:",omitempty"`
	NextContinuationToken string `xml:",omitempty"`
	KeyCount, MaxKeys     int
	IsTruncated           bool
	Contents              []listEntry
	CommonPrefixes        []listPrefix
}

type listEntry struct {
	Key, LastModified, ETag string
	Size                    int
	StorageClass            string
}

type listPrefix struct{ Prefix string }

const listTime = "2006-01-02T15:04:05.000Z"

// list answers ListObjectsV2.
func (s *Server) list(w http.ResponseWriter, bucketName string, query url.Values) *apiError {
	l := listing{prefix: query.Get("prefix"), delimiter: query.Get("delimiter"), after: query.Get("start-after"), most: s.opts.PageKeys}
	if text := query.Get("max-keys"); text != "" {
		n, err := strconv.ParseUint(text, 10, 31)
		if err != nil {
			return errArgument("max-keys is no number")
		}
		l.most = min(l.most, int(n))
	}
	if token := query.Get("continuation-token"); token != "" {
		after, err := base64.URLEncoding.DecodeString(token)
		if err != nil {
			return errArgument("the continuation token is not one of this server")
		}
		l.after = string(after)
	}
	encoded := func(name string) string { return name }
	if query.Get("encoding-type") == "url" {
		encoded = func(name string) string { return strings.ReplaceAll(url.QueryEscape(name), "%2F", "/") }
	}
	res, last, err := s.page(bucketName, l, encoded)
	if err != nil {
		return err
	}
	res.Name, res.MaxKeys, res.EncodingType = bucketName, l.most, query.Get("encoding-type")
	res.Prefix, res.Delimiter, res.StartAfter = encoded(l.prefix), encoded(l.delimiter), encoded(query.Get("start-after"))
	res.ContinuationToken = query.Get("continuation-token")
	if res.IsTruncated {
		res.NextContinuationToken = base64.URLEncoding.EncodeToString([]byte(last))
	}
	writeXML(w, res)
	return nil
}

// page lists one page. last is the name, or the common prefix, that the next one comes after.
func (s *Server) page(bucketName string, l listing, encoded func(string) string) (res *listResult, last string, err *apiError) {
	s.memory.mu.RLock()
	defer s.memory.mu.RUnlock()
	b := s.memory.buckets[bucketName]
	if b == nil {
		return nil, "", errNoSuchBucket()
	}
	res = &listResult{}
	if l.most == 0 {
		return res, "", nil
	}
	at, _ := slices.BinarySearch(b.keys, max(l.prefix, l.after))
	for ; at < len(b.keys) && strings.HasPrefix(b.keys[at], l.prefix); at++ {
		key := b.keys[at]
		common := commonPrefix(key, l)
		switch {
		case key <= l.after, common != "" && (common == last || common == l.after):
			continue
		case res.KeyCount == l.most:
			res.IsTruncated = true
			return res, last, nil
		case common != "":
			res.CommonPrefixes = append(res.CommonPrefixes, listPrefix{encoded(common)})
			last = common
		default:
			o := b.objects[key]
			res.Contents = append(res.Contents, listEntry{
				Key: encoded(key), LastModified: o.modified.UTC().Format(listTime), ETag: o.etag, Size: len(o.data), StorageClass: "STANDARD",
			})
			last = key
		}
		res.KeyCount++
	}
	return res, last, nil
}

// commonPrefix is the part of a name up to the delimiter that comes first after the prefix, or "".
func commonPrefix(key string, l listing) string {
	if l.delimiter == "" {
		return ""
	}
	head, _, found := strings.Cut(key[len(l.prefix):], l.delimiter)
	if !found {
		return ""
	}
	return l.prefix + head + l.delimiter
}

// maxDeleteBytes bounds the body of a deletion of many objects: 1,000 names of the greatest length,
// with their XML.
const maxDeleteBytes = 2 << 20

type deleteRequest struct {
	XMLName xml.Name `xml:"Delete"`
	Quiet   bool
	Objects []struct{ Key string } `xml:"Object"`
}

type deleteResult struct {
	XMLName xml.Name     `xml:"http://s3.amazonaws.com/doc/2006-03-01/ DeleteResult"`
	Deleted []deletedKey `xml:"Deleted"`
}

type deletedKey struct{ Key string }

// deleteMany answers the deletion of many objects.
func (s *Server) deleteMany(w http.ResponseWriter, r *http.Request, bucketName string) *apiError {
	var ask deleteRequest
	body := io.LimitReader(r.Body, maxDeleteBytes)
	if err := xml.NewDecoder(body).Decode(&ask); err != nil || len(ask.Objects) == 0 || len(ask.Objects) > s.opts.PageKeys {
		return errXML(s.opts.PageKeys)
	}
	var res deleteResult
	for _, o := range ask.Objects {
		if err := s.memory.delete(bucketName, o.Key); err != nil {
			return err
		}
		if !ask.Quiet {
			res.Deleted = append(res.Deleted, deletedKey(o))
		}
	}
	writeXML(w, res)
	return nil
}
