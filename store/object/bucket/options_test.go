package bucket

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestOptionsAreChecked(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty.pem")
	if err := os.WriteFile(empty, []byte("nothing"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		o    Options
		want string // in the error; "" is none
	}{
		{Options{URL: "s3://bucket"}, ""},
		{Options{URL: "s3://bucket/"}, ""},
		{Options{URL: "s3://bucket/a/b/", Endpoint: "http://127.0.0.1:9000/"}, ""},
		{Options{URL: "s3://bucket/a", Endpoint: "https://[::1]:9000", Style: StylePath, Region: "eu-west-1"}, ""},
		{Options{}, "s3://BUCKET/PREFIX"},
		{Options{URL: "http://bucket/a"}, "s3://BUCKET/PREFIX"},
		{Options{URL: "s3:///a"}, "s3://BUCKET/PREFIX"},
		{Options{URL: "s3://a"}, "bucket's name"},
		{Options{URL: "s3://" + testID + ":" + "hunter2" + "@bucket/a"}, "without credentials"},
		{Options{URL: "s3://bucket/a?region=x"}, "nothing after that"},
		{Options{URL: "s3://bucket:9000/a"}, "nothing after that"},
		{Options{URL: "s3://bucket/a//b"}, "a part that is empty"},
		{Options{URL: "s3://bucket/a/../b"}, "a part that is empty"},
		{Options{URL: "s3://bucket/a%00b"}, "not text"},
		{Options{URL: "s3://bucket/" + strings.Repeat("a", 513)}, "at most 512"},
		{Options{URL: "s3://bucket", Endpoint: "127.0.0.1:9000"}, "object_endpoint"},
		{Options{URL: "s3://bucket", Endpoint: "ftp://h"}, "object_endpoint"},
		{Options{URL: "s3://bucket", Endpoint: "http://u:hunter2@h"}, "without credentials"},
		{Options{URL: "s3://bucket", Endpoint: "http://h/path"}, "nothing after that"},
		{Options{URL: "s3://bucket", Endpoint: "http://h:hunter2"}, "object_endpoint"},
		{Options{URL: "s3://bucket", Style: "dns"}, "object_style"},
		{Options{URL: "s3://bucket", Region: "a b"}, "object_region"},
		{Options{URL: "s3://bucket", Endpoint: "http://h", CAFile: "x"}, "https://"},
		{Options{URL: "s3://bucket", CAFile: filepath.Join(t.TempDir(), "none")}, "object_ca"},
		{Options{URL: "s3://bucket", CAFile: empty}, "no certificate"},
		{Options{URL: "s3://bucket", UploadBytesPerS: -1}, "object_upload_bytes_per_s"},
		{Options{URL: "s3://bucket", Connections: -1}, "object_connections"},
		{Options{URL: "s3://bucket", Attempts: 101}, "attempts"},
		{Options{URL: "s3://bucket", Stall: -time.Second}, "time"},
		{Options{URL: "s3://bucket", Keys: &Keys{ID: testID}}, "a secret"},
	} {
		b, err := Open(c.o)
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%+v: %v", c.o, err)
		case c.want == "":
			b.Close()
		case err == nil || !strings.Contains(err.Error(), c.want):
			t.Errorf("%+v: %v, want %s", c.o, err, c.want)
		case strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), testID):
			t.Errorf("%v has a credential in it", err)
		}
	}
}

func TestRegionIsThatOfOtherTools(t *testing.T) {
	t.Setenv("AWS_REGION", "")
	t.Setenv("AWS_DEFAULT_REGION", "second")
	var o Options
	o.EnsureDefaults()
	if o.Region != "second" {
		t.Error(o.Region)
	}
	t.Setenv("AWS_REGION", "first")
	o = Options{}
	o.EnsureDefaults()
	if o.Region != "first" {
		t.Error(o.Region)
	}
	o = Options{Region: "mine"}
	o.EnsureDefaults()
	if o.Region != "mine" {
		t.Error(o.Region)
	}
}

func TestContentRanges(t *testing.T) {
	for text, want := range map[string][3]int64{"bytes 0-9/10": {0, 9, 10}, "bytes 5-5/*": {5, 5, -1}} {
		first, last, whole, ok := contentRange(text)
		if got := [3]int64{first, last, whole}; !ok || got != want {
			t.Errorf("%s: %v, %v", text, got, ok)
		}
	}
	for _, text := range []string{"", "bytes", "bytes 1-0/4", "bytes 0-1", "bytes 0/4", "bytes a-b/c", "bytes -1-2/4", "lines 0-1/4", "bytes 0-1/4/5", "bytes 0-4/4", "bytes 0-1/-4"} {
		if _, _, _, ok := contentRange(text); ok {
			t.Errorf("%q is a range", text)
		}
	}
}

func FuzzContentRange(f *testing.F) {
	f.Add("bytes 0-9/10")
	f.Add("bytes 5-5/*")
	f.Fuzz(func(t *testing.T, text string) {
		if first, last, whole, ok := contentRange(text); ok && (first < 0 || last < first || whole < -1) {
			t.Errorf("%q: %d to %d of %d", text, first, last, whole)
		}
	})
}
