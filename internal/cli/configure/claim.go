package configure

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
)

const (
	// maxReleaseName is where the chart cuts a name that it makes of a release's.
	maxReleaseName = 40
	// maxObjectName is the longest name that the chart gives an object of a namespace.
	maxObjectName = 63
	// objectHashDigits are the hexadecimal digits that stand for what is cut off.
	objectHashDigits = 10
)

// claimName names the claim of the socket's folder that a release of the chart makes in the engines' namespace: what
// kvconn.fullname and kvconn.nameIn of its _helpers.tpl give.
func claimName(release, releaseNamespace, engines string) string {
	const suffix = "-run"
	name := release
	if !strings.Contains(release, "kvconn") {
		name += "-kvconn"
	}
	if len(name) > maxReleaseName {
		name = name[:maxReleaseName]
	}
	name = strings.TrimSuffix(name, "-") + suffix
	if engines != releaseNamespace {
		name = releaseNamespace + "." + name
	}
	if len(name) > maxObjectName {
		hash := sha256.Sum256([]byte(name))
		begin := strings.TrimRight(name[:maxObjectName-len(suffix)-objectHashDigits-1], "-.")
		name = fmt.Sprintf("%s-%s%s", begin, hex.EncodeToString(hash[:])[:objectHashDigits], suffix)
	}
	return name
}
