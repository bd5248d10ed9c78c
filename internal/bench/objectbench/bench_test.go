package objectbench

import (
	"context"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvconn/kvconn/internal/testkit/versitygw"
)

func TestObjectBenchRuns(t *testing.T) {
	for _, blockBytes := range []int{4 << 10, 256 << 10} {
		r, err := Run(t.Context(), Options{BlockBytes: blockBytes, TotalBytes: 8 << 20, Rounds: 2, Connections: 2, Uploads: 2, Records: 20_000})
		if err != nil {
			t.Fatal(err)
		}
		if r.Server != ThisProcess || len(r.Forms) != 4 || r.FetchRatio <= 0 || r.UploadRatio <= 0 || r.FetchCopied.Ratio <= 0 {
			t.Errorf("%+v", r)
		}
		for _, f := range r.Forms {
			if compressed := f.Name == "compressed" || f.Name == "both"; compressed != (f.StoredRatio < 0.95) && blockBytes > 4<<10 {
				t.Errorf("%s records take %.2f of their payloads", f.Name, f.StoredRatio)
			}
			if f.Fetch.RawCPUSPerGiB <= 0 || f.Fetch.CPUSPerGiB <= 0 || f.Upload.RawCPUSPerGiB <= 0 || f.Upload.CPUSPerGiB <= 0 {
				t.Errorf("%+v", f)
			}
		}
		q := r.Requests
		if q.PutsPerGiB <= 0 || q.GetsPerGiB <= 0 || q.GetsPerRange < 1 {
			t.Errorf("%+v", q)
		}
		if r.LookupRequests != 0 || r.LookupSeconds <= 0 || r.DiskLookupSeconds <= 0 || r.Chain != 8192 || r.Records != 20_000 {
			t.Errorf("%+v", r.LookupResult)
		}
		// format, head, a part, the end of the log
		if j := r.JoinResult; j.JoinSeconds <= 0 || j.JoinRequests != 4 || j.BytesPerRecord <= 0 || j.ListBytesPerRecord < 18 {
			t.Errorf("%+v", j)
		}
	}
}

func TestOptionsThatCannotBeMeasured(t *testing.T) {
	for want, o := range map[string]Options{
		"needs the URL":    {Endpoint: "http://127.0.0.1:1"},
		"blocks of 33":     {BlockBytes: 33},
		"500 connections":  {Connections: 500},
		"100 bytes in all": {TotalBytes: 100},
		"100 records":      {Records: 100},
		"limit of -1":      {LinkBytesPerS: -1},
		"network of its":   {LinkBytesPerS: 1 << 20, URL: "s3://bucket"},
		"object: want":     {URL: "http://nowhere"},
	} {
		if _, err := Run(context.Background(), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
}

// A bucket that was given is left as it was.
func TestObjectBenchOnARealServer(t *testing.T) {
	server := versitygw.Start(t, "bucket")
	t.Setenv("AWS_ACCESS_KEY_ID", versitygw.Access)
	t.Setenv("AWS_SECRET_ACCESS_KEY", versitygw.Secret)
	r, err := Run(t.Context(), Options{
		URL: "s3://bucket/some/prefix/", Endpoint: server.Endpoint, Region: "us-east-1",
		BlockBytes: 64 << 10, TotalBytes: 4 << 20, Rounds: 1, Connections: 2, Uploads: 2, Records: 20_000,
	})
	if err != nil {
		t.Fatal(err)
	}
	if r.Server != GivenBucket || r.FetchRatio <= 0 || r.UploadRatio <= 0 || r.LookupRequests != 0 || r.JoinRequests != 4 {
		t.Errorf("%+v", r)
	}
	_ = filepath.WalkDir(filepath.Join(server.Dir, "bucket"), func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			t.Errorf("%s is left", path)
		}
		return err
	})
}
