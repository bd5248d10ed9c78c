package settings

import (
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/config"
	"github.com/kvconn/kvconn/internal/daemon"
	"github.com/kvconn/kvconn/store/object"
	"github.com/kvconn/kvconn/store/object/bucket"
	"github.com/kvconn/kvconn/store/object/upload"
)

// ObjectOptions are the settings of the object tier; nil if there is to be none. The settings have been
// checked, and the result is checked here.
func ObjectOptions(s *config.Serve) (*daemon.ObjectOptions, error) {
	if s.ObjectURL == "" {
		return nil, nil
	}
	policy, err := s.PolicyOf()
	if err != nil {
		return nil, err
	}
	prices, err := s.Prices()
	if err != nil {
		return nil, err
	}
	o := &daemon.ObjectOptions{
		Prices: daemon.Prices{Write: prices[0], Read: prices[1], GBMonth: prices[2]},
		Tier: object.Options{
			Bucket:   BucketOptions(s.ObjectURL, &s.Bucket),
			MaxBytes: boundOr(int64(s.ObjectMaxBytes), object.NoBytes), MaxAge: boundOr(s.ObjectMaxAge, object.NoAge),
			IndexBytes: int64(s.ObjectIndexBytes), Connections: s.ObjectConnections, ReadInFlightBytes: int64(s.ObjectReadInFlight),
			Compress: s.ObjectCompress == "auto", PollMax: s.ObjectPollMax, Writes: s.ObjectUploads,
		},
		Upload: upload.Options{
			Policy: func(m *connector.Manifest) upload.Policy { return policyOf(policy(m.Model)) },
			Age:    s.ObjectUploadAge, QueueBytes: int64(s.ObjectQueueBytes), Uploads: s.ObjectUploads,
		},
	}
	at := &o.Tier.Bucket
	at.UploadBytesPerS, at.DownloadBytesPerS = int64(s.ObjectUploadBytesPerS), int64(s.ObjectDownloadBytesPerS)
	tier, uploads := o.Tier, o.Upload
	tier.EnsureDefaults()
	tier.Bucket.EnsureDefaults()
	uploads.EnsureDefaults()
	for _, check := range []func() error{tier.Bucket.Validate, tier.Validate, uploads.Validate} {
		if err := check(); err != nil {
			return nil, err
		}
	}
	return o, nil
}

// BucketOptions say how a bucket is reached.
func BucketOptions(url string, b *config.Bucket) bucket.Options {
	return bucket.Options{URL: url, Endpoint: b.ObjectEndpoint, Style: b.ObjectStyle, Region: b.ObjectRegion, CAFile: b.ObjectCA}
}

// boundOr is a bound, for which 0 stands for none.
func boundOr[T int64 | time.Duration](bound, none T) T {
	if bound == 0 {
		return none
	}
	return bound
}

// policyOf is a policy by its name, which was checked.
func policyOf(name string) upload.Policy {
	switch name {
	case "second-use":
		return upload.SecondUse
	case "off":
		return upload.Off
	}
	return upload.All
}
