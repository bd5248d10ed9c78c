package residency

import (
	"errors"
	"fmt"
	"mime"
	"net/url"
)

// The tiers that have a stream.
const (
	Disk   = "disk"
	Object = "object"
)

// ErrTier says that a stream is of another tier than was meant, or that there is no such tier.
var ErrTier = errors.New("residency of another tier")

const (
	mediaType = "application/vnd.kvconn.residency"
	tierParam = "tier"
)

// ParseTier is the tier that the parameters of a request ask for: the disk if they name none. It fails with [ErrTier]
// for an unknown one.
func ParseTier(q url.Values) (string, error) {
	switch tier := q.Get(tierParam); tier {
	case "", Disk:
		return Disk, nil
	case Object:
		return Object, nil
	default:
		return "", fmt.Errorf("%w: there is no tier %.20q with residency: want %s or %s", ErrTier, tier, Disk, Object)
	}
}

// TierQuery adds a tier to the parameters of a request.
func TierQuery(q url.Values, tier string) {
	if tier != Disk {
		q.Set(tierParam, tier)
	}
}

// ContentType is the content type of a tier's stream. That of the disk has no parameter.
func ContentType(tier string) string {
	if tier == Disk {
		return mediaType
	}
	return mime.FormatMediaType(mediaType, map[string]string{tierParam: tier})
}

// CheckContentType fails with [ErrTier] if a stream of that content type is not the tier's: daemons of releases that
// do not know the parameter tell of the disk, whatever they are asked for.
func CheckContentType(contentType, tier string) error {
	got := Disk
	if _, params, err := mime.ParseMediaType(contentType); err == nil && params[tierParam] != "" {
		got = params[tierParam]
	}
	if got != tier {
		return fmt.Errorf("%w: the daemon tells of %.20q, not of %q; an older release does not know tiers", ErrTier, got, tier)
	}
	return nil
}
