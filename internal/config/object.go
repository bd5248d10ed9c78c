package config

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Bucket are the settings that say how a bucket is reached: for the daemon, and for commands that work on a bucket.
type Bucket struct {
	ObjectEndpoint string `name:"object-endpoint" env:"KVCONN_OBJECT_ENDPOINT" placeholder:"URL" help:"S3 server, such as https://minio.example:9000. Default: AWS."`
	ObjectStyle    string `name:"object-style" env:"KVCONN_OBJECT_STYLE" default:"auto" enum:"auto,path,virtual" help:"How requests name the bucket: in the path, in the host name (virtual), or auto."`
	ObjectRegion   string `name:"object-region" env:"KVCONN_OBJECT_REGION" placeholder:"NAME" help:"Region of the bucket. Default: AWS_REGION, else the server is asked."`
	ObjectCA       string `name:"object-ca" env:"KVCONN_OBJECT_CA" placeholder:"FILE" help:"More roots in PEM to verify the server by."`
}

// Object are the settings of the object tier, a part of [Serve]. Without a bucket there is none.
type Object struct {
	ObjectURL string `name:"object" env:"KVCONN_OBJECT" placeholder:"URL" help:"Bucket that nodes share the cache through: s3://BUCKET or s3://BUCKET/PREFIX. Credentials come from AWS_* variables, shared files or roles. Default: none."`
	Bucket
	ObjectMaxBytes          Bytes         `name:"object-max-bytes" env:"KVCONN_OBJECT_MAX_BYTES" default:"1TB" placeholder:"SIZE" help:"Cap of what all nodes together keep in the bucket; 0 for none (default 1TB)."`
	ObjectMaxAge            time.Duration `name:"object-max-age" env:"KVCONN_OBJECT_MAX_AGE" default:"720h" help:"What nobody used for that long is deleted; 0 for never."`
	ObjectPolicy            string        `name:"object-policy" env:"KVCONN_OBJECT_POLICY" default:"all" enum:"all,second-use,off" help:"What is uploaded: all, what is used a second time, or nothing (off)."`
	ObjectPolicies          string        `name:"object-policies" env:"KVCONN_OBJECT_POLICIES" placeholder:"LIST" help:"Other policies for some models, as MODEL=POLICY,MODEL=POLICY; a MODEL may have * in it. The first that matches holds."`
	ObjectUploadAge         time.Duration `name:"object-upload-age" env:"KVCONN_OBJECT_UPLOAD_AGE" default:"10s" help:"How long a record waits at most for others to be uploaded with it."`
	ObjectQueueBytes        Bytes         `name:"object-queue-bytes" env:"KVCONN_OBJECT_QUEUE_BYTES" default:"256GiB" placeholder:"SIZE" help:"How much of the disk may wait to be uploaded; more is left for a later start or use (default 256GiB)."`
	ObjectUploads           int           `name:"object-uploads" env:"KVCONN_OBJECT_UPLOADS" default:"4" placeholder:"N" help:"Objects that are uploaded at one time, of at most 32MiB each in memory."`
	ObjectConnections       int           `name:"object-connections" env:"KVCONN_OBJECT_CONNECTIONS" default:"32" placeholder:"N" help:"Ranges that are fetched at one time."`
	ObjectReadInFlight      Bytes         `name:"object-read-in-flight-bytes" env:"KVCONN_OBJECT_READ_IN_FLIGHT_BYTES" default:"64MiB" placeholder:"SIZE" help:"Bytes that are requested from the bucket at one time (default 64MiB)."`
	ObjectUploadBytesPerS   Bytes         `name:"object-upload-bytes-per-s" env:"KVCONN_OBJECT_UPLOAD_BYTES_PER_S" default:"0B" placeholder:"SIZE" help:"Bound of the rate of uploads. Default: none."`
	ObjectDownloadBytesPerS Bytes         `name:"object-download-bytes-per-s" env:"KVCONN_OBJECT_DOWNLOAD_BYTES_PER_S" default:"0B" placeholder:"SIZE" help:"Bound of the rate of downloads. Default: none."`
	ObjectPollMax           time.Duration `name:"object-poll-max" env:"KVCONN_OBJECT_POLL_MAX" default:"30s" help:"Longest pause between requests for news of other nodes while this one is idle."`
	ObjectIndexBytes        Bytes         `name:"object-index-bytes" env:"KVCONN_OBJECT_INDEX_BYTES" default:"1GiB" placeholder:"SIZE" help:"Memory for what is known of the bucket: about 29 million records (default 1GiB)."`
	ObjectCompress          string        `name:"object-compress" env:"KVCONN_OBJECT_COMPRESS" default:"off" enum:"off,auto" help:"auto compresses the records of models whose records shrink enough."`
	ObjectPrices            string        `name:"object-prices" env:"KVCONN_OBJECT_PRICES" default:"5,0.4,0.023" placeholder:"PRICES" help:"Dollars for a million writing requests, a million reading ones, and a GB a month, for the estimate in status and metrics."`
}

// Bounds of settings of the object tier.
const (
	maxObjectUploads     = 64
	maxObjectConnections = 1024
	minObjectReadFlight  = 8 << 20
	minObjectIndexBytes  = 1 << 20
	maxObjectPoll        = 2 * time.Minute // records are not offered 5 minutes after the last poll
	maxObjectUploadAge   = time.Hour
	// maxObjectLoadTimeout is what the grace of deleted objects allows for.
	maxObjectLoadTimeout = 2 * time.Minute
)

// validateObject checks what can be checked without the tier; its own options check the rest.
func (s *Serve) validateObject() error {
	if s.ObjectURL == "" {
		if s.ObjectEndpoint != "" || s.ObjectRegion != "" || s.ObjectCA != "" || s.ObjectPolicies != "" {
			return errors.New("object is not set: the other object_ settings mean nothing without it")
		}
		return nil
	}
	_, policies := s.PolicyOf()
	_, prices := s.Prices()
	switch {
	case s.LoadTimeout > maxObjectLoadTimeout:
		return fmt.Errorf("load_timeout is %s: at most %s with an object tier", s.LoadTimeout, maxObjectLoadTimeout)
	case s.ObjectMaxAge < 0:
		return errors.New("object_max_age is negative")
	case s.ObjectUploadAge <= 0 || s.ObjectUploadAge > maxObjectUploadAge:
		return fmt.Errorf("object_upload_age is %s: more than 0, at most %s", s.ObjectUploadAge, maxObjectUploadAge)
	case s.ObjectUploads < 1 || s.ObjectUploads > maxObjectUploads:
		return fmt.Errorf("object_uploads is %d: 1 to %d", s.ObjectUploads, maxObjectUploads)
	case s.ObjectConnections < 1 || s.ObjectConnections > maxObjectConnections:
		return fmt.Errorf("object_connections is %d: 1 to %d", s.ObjectConnections, maxObjectConnections)
	case s.ObjectReadInFlight < minObjectReadFlight:
		return fmt.Errorf("object_read_in_flight_bytes is %s: at least %s", s.ObjectReadInFlight, Bytes(minObjectReadFlight))
	case s.ObjectPollMax < time.Second || s.ObjectPollMax > maxObjectPoll:
		return fmt.Errorf("object_poll_max is %s: 1s to %s", s.ObjectPollMax, maxObjectPoll)
	case s.ObjectIndexBytes < minObjectIndexBytes:
		return fmt.Errorf("object_index_bytes is %s: at least %s", s.ObjectIndexBytes, Bytes(minObjectIndexBytes))
	}
	return errors.Join(policies, prices)
}

// PolicyOf returns what is uploaded of a model: all, second-use or off.
func (o *Object) PolicyOf() (func(model string) string, error) {
	type rule struct{ pattern, policy string }
	var rules []rule
	for text := range strings.SplitSeq(o.ObjectPolicies, ",") {
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		at := strings.LastIndexByte(text, '=')
		if at < 1 {
			return nil, fmt.Errorf("object_policies: %q is not MODEL=POLICY", text)
		}
		r := rule{strings.TrimSpace(text[:at]), strings.TrimSpace(text[at+1:])}
		switch r.policy {
		case "all", "second-use", "off":
		default:
			return nil, fmt.Errorf("object_policies: %q is no policy: want all, second-use or off", r.policy)
		}
		rules = append(rules, r)
	}
	return func(model string) string {
		for _, r := range rules {
			if matches(r.pattern, model) {
				return r.policy
			}
		}
		return o.ObjectPolicy
	}, nil
}

// matches reports whether a text is a pattern, in which * stands for any text.
func matches(pattern, text string) bool {
	head, rest, star := strings.Cut(pattern, "*")
	text, ok := strings.CutPrefix(text, head)
	if !star || !ok {
		return ok && text == ""
	}
	parts := strings.Split(rest, "*")
	last := parts[len(parts)-1]
	for _, part := range parts[:len(parts)-1] {
		at := strings.Index(text, part)
		if at < 0 {
			return false
		}
		text = text[at+len(part):]
	}
	return strings.HasSuffix(text, last)
}

// Prices are dollars for a million writing requests, a million reading ones, and a GB a month.
func (o *Object) Prices() (prices [3]float64, err error) {
	list := strings.Split(o.ObjectPrices, ",")
	if len(list) != len(prices) {
		return prices, fmt.Errorf("object_prices is %q: want three numbers with commas between them", o.ObjectPrices)
	}
	for i, text := range list {
		prices[i], err = strconv.ParseFloat(strings.TrimSpace(text), 64)
		if err != nil || prices[i] < 0 || math.IsNaN(prices[i]) || math.IsInf(prices[i], 0) {
			return prices, fmt.Errorf("object_prices: %q is no price", text)
		}
	}
	return prices, nil
}
