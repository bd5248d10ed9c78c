package check

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
)

// variants are the values that the chart is tested with, by name.
func variants(t *testing.T) map[string]values {
	return map[string]values{
		"defaults": {}, "all": readValues(t, "all.yaml"), "hostpath": readValues(t, "hostpath.yaml"), "router": readValues(t, "router.yaml"),
	}
}

// What `helm lint --strict` says.
func TestLint(t *testing.T) {
	oldest := kubeVersion()
	for name, v := range variants(t) {
		for _, m := range lint.AllWithKubeVersion(chartDir, v, namespace, &oldest).Messages {
			if m.Severity > support.InfoSev {
				t.Errorf("%s: %s", name, m)
			}
		}
	}
}

// The version of the chart, of the image and of kvconnd is one.
func TestTheVersionIsKvconnds(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(repository(t), "internal/version/number.txt"))
	if err != nil {
		t.Fatal(err)
	}
	number := strings.TrimSpace(string(b))
	if c := load(t); c.Metadata.Version != number || c.Metadata.AppVersion != number {
		t.Errorf("the chart has the version %s and kvconnd %s, the number is %s", c.Metadata.Version, c.Metadata.AppVersion, number)
	}
	if image := daemonSet(t, render(t, nil)).Spec.Template.Spec.Containers[0].Image; image != "kvconnd:"+number {
		t.Errorf("image %s", image)
	}
}

// Every object has the chart's labels, a name that Kubernetes takes, and what it refers to.
func TestObjectsFitTogether(t *testing.T) {
	for name, v := range variants(t) {
		all := render(t, v)
		for key, o := range all {
			longest := 63
			if _, ok := o.(*corev1.PersistentVolume); ok {
				longest = 253
			}
			if len(o.GetName()) > longest || o.GetLabels()["app.kubernetes.io/instance"] != release {
				t.Errorf("%s: %s has labels %v", name, key, o.GetLabels())
			}
			if _, cluster := o.(*corev1.PersistentVolume); cluster == (o.GetNamespace() != "") {
				t.Errorf("%s: %s has the namespace %q", name, key, o.GetNamespace())
			}
		}
		var pods []corev1.PodTemplateSpec
		if all["DaemonSet "+namespace+"/"+fullname] != nil {
			pods = append(pods, daemonSet(t, all).Spec.Template)
		}
		if all["Deployment "+namespace+"/"+fullname+"-router"] != nil {
			pods = append(pods, deployment(t, all).Spec.Template)
		}
		if len(pods) == 0 {
			t.Errorf("%s: no pods", name)
		}
		for _, p := range pods {
			checkPod(t, name, all, &p)
		}
	}
}

// given are the Secrets and ConfigMaps that testdata names and the user makes.
func given() []string {
	return []string{"Secret token", "Secret bucket", "Secret keys", "Secret engines", "ConfigMap bucket-ca", "ConfigMap ranks"}
}

func checkPod(t *testing.T, variant string, all objects, p *corev1.PodTemplateSpec) {
	t.Helper()
	exists := func(kind, name string) {
		t.Helper()
		if all[kind+" "+namespace+"/"+name] == nil && !slices.Contains(given(), kind+" "+name) {
			t.Errorf("%s: there is no %s %s", variant, kind, name)
		}
	}
	exists("ServiceAccount", p.Spec.ServiceAccountName)
	for _, v := range p.Spec.Volumes {
		switch {
		case v.ConfigMap != nil:
			exists("ConfigMap", v.ConfigMap.Name)
		case v.Secret != nil:
			exists("Secret", v.Secret.SecretName)
		case v.PersistentVolumeClaim != nil:
			exists("PersistentVolumeClaim", v.PersistentVolumeClaim.ClaimName)
		}
	}
	for _, e := range p.Spec.Containers[0].Env {
		if e.ValueFrom != nil {
			exists("Secret", e.ValueFrom.SecretKeyRef.Name)
		}
	}
	for _, e := range p.Spec.Containers[0].EnvFrom {
		exists("Secret", e.SecretRef.Name)
	}
	selects := 0
	for key, o := range all {
		var selector map[string]string
		switch o := o.(type) {
		case *corev1.Service:
			selector = o.Spec.Selector
		case *policyv1.PodDisruptionBudget:
			selector = o.Spec.Selector.MatchLabels
		case *networkingv1.NetworkPolicy:
			selector = o.Spec.PodSelector.MatchLabels
		case *monitoringv1.PodMonitor:
			selector = o.Spec.Selector.MatchLabels
		default:
			continue
		}
		if len(selector) == 0 {
			t.Errorf("%s: %s selects everything", variant, key)
		}
		matches := true
		for k, v := range selector {
			matches = matches && p.Labels[k] == v
		}
		if matches {
			selects++
		}
	}
	if selects == 0 {
		t.Errorf("%s: no Service selects the pod %v", variant, p.Labels)
	}
}

// Each node's folder is one volume for all nodes, and each namespace has its own claim of the socket's.
func TestVolumesAndClaimsBelongTogether(t *testing.T) {
	for name, want := range map[string]int{"defaults": 2, "all": 3, "hostpath": 0, "router": 0} {
		all, volumes := render(t, variants(t)[name]), 0
		for _, o := range all {
			pv, ok := o.(*corev1.PersistentVolume)
			if !ok {
				continue
			}
			volumes++
			claim := get[*corev1.PersistentVolumeClaim](t, all, "PersistentVolumeClaim "+pv.Spec.ClaimRef.Namespace+"/"+pv.Spec.ClaimRef.Name)
			terms := pv.Spec.NodeAffinity.Required.NodeSelectorTerms
			switch {
			case claim.Spec.VolumeName != pv.Name || *claim.Spec.StorageClassName != "" || pv.Spec.StorageClassName != "":
				t.Errorf("%s: %s is not the volume of its claim", name, pv.Name)
			case !slices.Equal(claim.Spec.AccessModes, pv.Spec.AccessModes) || claim.Spec.Resources.Requests.Storage().Cmp(*pv.Spec.Capacity.Storage()) > 0:
				t.Errorf("%s: the claim of %s asks for more than it has", name, pv.Name)
			case pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain || pv.Spec.Local == nil:
				t.Errorf("%s: %+v", name, pv.Spec)
			case len(terms) != 1 || terms[0].MatchExpressions[0].Operator != corev1.NodeSelectorOpExists:
				t.Errorf("%s: %s is not for every node: %+v", name, pv.Name, terms)
			}
		}
		if volumes != want {
			t.Errorf("%s: %d volumes, want %d", name, volumes, want)
		}
	}
	// Names of volumes are long enough for every namespace: if they were cut, two would be one object, which is an error.
	long := strings.Repeat("a", 63)
	render(t, values{"engineNamespaces": []any{long, long[1:] + "b"}})
}

// The router may see what it is told to look at, and nothing else.
func TestTheRoutersRights(t *testing.T) {
	for name, want := range map[string][]string{"defaults": nil, "all": {"inference", namespace}, "router": {namespace}} {
		all := render(t, variants(t)[name])
		var roles, bindings []string
		for _, o := range all {
			switch o := o.(type) {
			case *rbacv1.Role:
				roles = append(roles, o.Namespace)
				if got := fmt.Sprint(o.Rules); got != fmt.Sprint([]rbacv1.PolicyRule{{
					APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"}, Verbs: []string{"get", "list", "watch"},
				}}) {
					t.Errorf("%s: %s", name, got)
				}
			case *rbacv1.RoleBinding:
				bindings = append(bindings, o.Namespace)
				if s := o.Subjects[0]; s.Name != fullname+"-router" || s.Namespace != namespace {
					t.Errorf("%s: %+v", name, s)
				}
			}
		}
		slices.Sort(roles)
		slices.Sort(bindings)
		if !slices.Equal(roles, want) || !slices.Equal(bindings, want) {
			t.Errorf("%s: roles in %v, bindings in %v, want %v", name, roles, bindings, want)
		}
	}
	if got := deployment(t, render(t, readValues(t, "all.yaml"))).Spec.Template.Spec.AutomountServiceAccountToken; !*got {
		t.Error("the router has no token for the API server")
	}
	v := parse(t, `router: {enabled: true, discovery: [{dns: d, rank: {model: m, endpoint: "http://{address}:1"}}]}`)
	if got := deployment(t, render(t, v)).Spec.Template.Spec.AutomountServiceAccountToken; *got {
		t.Error("the router has a token that it does not need")
	}
}

// What cannot work is refused before it is installed.
func TestWrongValuesAreRefused(t *testing.T) {
	for text, want := range map[string]string{
		`daemn: {}`:                                       "daemn",
		`daemon: {hostBytes: lots}`:                       "hostBytes",
		`daemon: {hostBytes: 4294967296}`:                 "hostBytes",
		`daemon: {maxBytes: 500 GB}`:                      "maxBytes",
		`daemon: {settings: {dir: /x}}`:                   "storage.storePath",
		`daemon: {settings: {http_token: secret}}`:        "httpTokenSecret",
		`daemon: {settings: {max_bytes: 1TB}}`:            "daemon.maxBytes",
		`daemon: {settings: {stop_timeout: soon}}`:        "is no time",
		`daemon: {settings: {object_prices: [1]}}`:        "settings",
		`daemon: {object: bucket}`:                        "object",
		`daemon: {port: 0}`:                               "port",
		`user: 0`:                                         "user",
		`storage: {kind: nfs}`:                            "kind",
		`storage: {prepare: {enabled: true}}`:             "hostPath",
		`storage: {storePath: relative}`:                  "storePath",
		`storage: {storePath: /a, runPath: /a}`:           "the same folder",
		`router: {drainDelay: 20s}`:                       "more than half",
		`router: {enabled: true, settings: {ranks: x}}`:   "router.ranks",
		`router: {enabled: true, settings: {http: ":1"}}`: "router.port",
		`router: {enabled: true, replicas: two}`:          "replicas",
		`engineNamespaces: [Upper]`:                       "engineNamespaces",
	} {
		if _, err := template(load(t), parse(t, text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q in it", text, err, want)
		}
	}
}

// A chart that is packed with rules and dashboards installs them.
func TestRulesAndDashboardsOfTheChartsFolder(t *testing.T) {
	c := load(t)
	c.Files = append(c.Files,
		&chart.File{Name: "monitoring/kvconn-alerts.yaml", Data: []byte("groups:\n  - name: kvconn\n    rules:\n      - {alert: A, expr: 'up == 0', for: 5m, labels: {severity: warning}, annotations: {summary: '{{ $labels.node }}'}}\n")},
		&chart.File{Name: "monitoring/daemon.json", Data: []byte("{\n  \"title\": \"kvconn\"\n}\n")})
	all := renderChart(t, c, parse(t, `{prometheusRule: {enabled: true, labels: {release: p}}, dashboards: {enabled: true}}`))
	rule := get[*monitoringv1.PrometheusRule](t, all, "PrometheusRule "+namespace+"/"+fullname+"-kvconn-alerts")
	if r := rule.Spec.Groups[0].Rules[0]; r.Alert != "A" || r.Annotations["summary"] != "{{ $labels.node }}" || rule.Labels["release"] != "p" {
		t.Errorf("%+v", rule)
	}
	board := get[*corev1.ConfigMap](t, all, "ConfigMap "+namespace+"/"+fullname+"-dashboard-daemon")
	if board.Data["daemon.json"] != "{\n  \"title\": \"kvconn\"\n}\n" && board.Data["daemon.json"] != "{\n  \"title\": \"kvconn\"\n}" || board.Labels["grafana_dashboard"] != "1" {
		t.Errorf("%+v", board)
	}
}
