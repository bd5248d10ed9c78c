package check

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// installed are the objects of a release that has engines, and a router that follows them, in the namespace inference.
func installed(t *testing.T, release, namespace string) objects {
	t.Helper()
	files, err := templateAs(load(t), parse(t, `
engineNamespaces: [inference]
router:
  enabled: true
  discovery:
    - {service: vllm, namespace: inference, daemons: kvconnd, daemons_namespace: inference, rank: {model: m, endpoint: "http://{address}:1"}}
`), release, namespace)
	if err != nil {
		t.Fatal(err)
	}
	return read(t, files)
}

// An object belongs to one release: Helm refuses to install what another release has, and an uninstall would take it away.
func TestReleasesThatShareANamespaceOfEnginesShareNoObject(t *testing.T) {
	long, longName := strings.Repeat("n", 62), strings.Repeat("r", 40)
	owner := make(map[string]string)
	for _, r := range []struct{ release, namespace string }{
		{"cache", "blue"}, {"cache", "green"}, {"other", "blue"}, {"cache", "inference"},
		// What reads alike without what stands between the parts.
		{"team-kvconn", "ml"}, {"kvconn", "ml-team"},
		// What is the same where it is cut.
		{longName, long + "a"}, {longName, long + "b"}, {longName[1:] + "x", long + "a"},
	} {
		for key, o := range installed(t, r.release, r.namespace) {
			if before := owner[key]; before != "" {
				t.Errorf("%s of the release %s in %s is also that of %s", key, r.release, r.namespace, before)
			}
			owner[key] = fmt.Sprintf("%s in %s", r.release, r.namespace)
			if bad := validation.IsDNS1123Subdomain(o.GetName()); bad != nil {
				t.Errorf("%s: %v", key, bad)
			}
			if _, volume := o.(*corev1.PersistentVolume); !volume && len(o.GetName()) > validation.DNS1123LabelMaxLength {
				t.Errorf("%s has %d characters", key, len(o.GetName()))
			}
		}
	}
}

// What refers to an object that has another name in the engines' namespace finds it.
func TestRolesOfAnotherNamespaceAreBound(t *testing.T) {
	for _, namespace := range []string{"blue", strings.Repeat("n", 63)} {
		all, bindings := installed(t, "cache", namespace), 0
		for _, o := range all {
			if b, ok := o.(*rbacv1.RoleBinding); ok {
				bindings++
				get[*rbacv1.Role](t, all, "Role "+b.Namespace+"/"+b.RoleRef.Name)
				get[*corev1.ServiceAccount](t, all, "ServiceAccount "+b.Subjects[0].Namespace+"/"+b.Subjects[0].Name)
			}
		}
		if bindings != 1 {
			t.Errorf("%d bindings", bindings)
		}
	}
}

// The patch that kvconnd prints for engines names the claim that the chart makes, in the release's namespace and in another.
func TestThePatchOfEnginesNamesTheClaim(t *testing.T) {
	for _, release := range []string{"cache", "my-kvconn", strings.Repeat("r", 33), strings.Repeat("r", 45), "r" + strings.Repeat("-", 38) + "r"} {
		for _, namespace := range []string{"kvconn", "inference", strings.Repeat("n", 63)} {
			all := installed(t, release, namespace)
			out, err := run(t, nil, "config", "k8s", "--release", release, "--release-namespace", namespace, "--namespace", "inference", "--", "serve", "m")
			if err != nil {
				t.Fatal(err, out)
			}
			_, claim, _ := strings.Cut(out, "claimName: ")
			claim, _, _ = strings.Cut(claim, "\n")
			get[*corev1.PersistentVolumeClaim](t, all, "PersistentVolumeClaim inference/"+claim)
		}
	}
}
