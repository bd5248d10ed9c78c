package config

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"sort"
	"strings"
)

// envPrefix begins the name of every variable that is a setting.
const envPrefix = "KVCONN_"

// CheckEnvironment reports every variable of environ (in the form of [os.Environ]) that begins
// with KVCONN_ and is not in known, each with the nearest known one. It accepts the variables that
// Kubernetes puts into every container for a service (KVCONN_PORT for one named kvconn), and those
// of the tests (KVCONN_TEST_…).
func CheckEnvironment(environ, known []string) error {
	var errs []error
	for _, entry := range environ {
		name, _, _ := strings.Cut(entry, "=")
		switch {
		case !strings.HasPrefix(name, envPrefix), strings.HasPrefix(name, envPrefix+"TEST_"):
		case slices.Contains(known, name), isServiceVariable(name):
		default:
			errs = append(errs, fmt.Errorf("unknown environment variable %s, did you mean %s?", name, Nearest(name, known)))
		}
	}
	sort.Slice(errs, func(i, j int) bool { return errs[i].Error() < errs[j].Error() })
	return errors.Join(errs...)
}

// isServiceVariable recognizes the variables that Kubernetes and Docker links derive from a
// service's name (kubernetes.io, "Service: environment variables").
func isServiceVariable(name string) bool {
	matched, _ := regexp.MatchString(`_SERVICE_HOST$|_SERVICE_PORT(_|$)|_PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?$`, name)
	return matched
}
