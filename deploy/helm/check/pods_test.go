package check

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
)

// forbidden is what a Pod Security Standard has against a pod, empty if nothing.
func forbidden(t *testing.T, level api.Level, p *corev1.PodTemplateSpec) string {
	t.Helper()
	e, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	meta := metav1.ObjectMeta(p.ObjectMeta)
	r := policy.AggregateCheckResults(e.EvaluatePod(api.LevelVersion{Level: level, Version: api.LatestVersion()}, &meta, &p.Spec))
	if r.Allowed {
		return ""
	}
	return r.ForbiddenDetail()
}

// Pods keep the strictest standard, whatever is switched on; hostPath alone, which no standard but "privileged" allows,
// is the user's choice.
func TestPodsKeepThePodSecurityStandards(t *testing.T) {
	for _, name := range []string{"defaults", "all"} {
		all := render(t, variants(t)[name])
		if text := forbidden(t, api.LevelRestricted, &daemonSet(t, all).Spec.Template); text != "" {
			t.Errorf("%s: the daemon: %s", name, text)
		}
	}
	for _, name := range []string{"all", "router"} {
		all := render(t, variants(t)[name])
		if text := forbidden(t, api.LevelRestricted, &deployment(t, all).Spec.Template); text != "" {
			t.Errorf("%s: the router: %s", name, text)
		}
	}
	pod := daemonSet(t, render(t, readValues(t, "hostpath.yaml"))).Spec.Template
	if text := forbidden(t, api.LevelBaseline, &pod); !regexp.MustCompile(`^hostPath volumes \(volumes "store", "run"\)$`).MatchString(text) {
		t.Errorf("hostPath: %q", text)
	}
	pod = daemonSet(t, render(t, parse(t, "storage: {kind: hostPath}"))).Spec.Template
	if len(pod.Spec.InitContainers) != 0 {
		t.Error("a container runs as root although nobody asked for it")
	}
	// The check does find what is wrong.
	pod.Spec.Volumes, pod.Spec.Containers[0].SecurityContext.Privileged = nil, new(bool)
	*pod.Spec.Containers[0].SecurityContext.Privileged = true
	if text := forbidden(t, api.LevelBaseline, &pod); text == "" {
		t.Error("a privileged pod is baseline")
	}
}

// What no standard asks for, and the daemon does not need either.
func TestPodsHaveNoMoreThanTheyNeed(t *testing.T) {
	all := render(t, readValues(t, "all.yaml"))
	for name, p := range map[string]corev1.PodSpec{"daemon": daemonSet(t, all).Spec.Template.Spec, "router": deployment(t, all).Spec.Template.Spec} {
		c := p.Containers[0]
		if p.HostNetwork || p.HostPID || p.HostIPC || !*c.SecurityContext.ReadOnlyRootFilesystem || *p.EnableServiceLinks || len(p.Containers) != 1 {
			t.Errorf("%s: %+v", name, p)
		}
		if *p.SecurityContext.RunAsUser != 10473 || *p.SecurityContext.FSGroup != 10473 || *p.SecurityContext.FSGroupChangePolicy != corev1.FSGroupChangeOnRootMismatch {
			t.Errorf("%s: %+v", name, p.SecurityContext)
		}
		if c.ReadinessProbe.HTTPGet.Path != "/readyz" || c.LivenessProbe.HTTPGet.Path != "/openapi.yaml" {
			t.Errorf("%s: probes %+v %+v", name, c.ReadinessProbe, c.LivenessProbe)
		}
		for _, e := range c.Env {
			if strings.Contains(e.Name, "TOKEN") && e.Value != "" || strings.Contains(strings.Join(c.Args, " "), "oken") {
				t.Errorf("%s: a secret is in the pod's description: %+v", name, e)
			}
		}
	}
	if *daemonSet(t, all).Spec.Template.Spec.AutomountServiceAccountToken {
		t.Error("the daemon has a token for the API server")
	}
}

// Memory follows from the settings, and so does the time for a stop.
func TestResourcesFollowFromSettings(t *testing.T) {
	for _, c := range []struct {
		values  string
		memory  string
		seconds int64
	}{
		{``, "4672Mi", 30},                                               // 4096 + 64 + 512
		{`daemon: {hostBytes: 64GB}`, "61612Mi", 30},                     // 64e9/2^20 = 61035.2, rounded up with the rest
		{`daemon: {hostBytes: 16Gi, eventBytes: 256MiB}`, "17152Mi", 30}, // 16384 + 256 + 512
		{`daemon: {object: "s3://b"}`, "5888Mi", 30},                     // + 1024 + 4 x 32 + 64
		{`daemon: {object: "s3://b", settings: {object_uploads: 8, object_index_bytes: 2GiB, object_read_in_flight_bytes: 1GiB}}`, "8000Mi", 30},
		{`daemon: {settings: {stop_timeout: 1m30s}}`, "4672Mi", 95},
		{`daemon: {settings: {stop_timeout: 1500ms}}`, "4672Mi", 7},
		{`daemon: {settings: {stop_timeout: 1h0.5s}}`, "4672Mi", 3606},
	} {
		p := daemonSet(t, render(t, parse(t, c.values))).Spec.Template.Spec
		r := p.Containers[0].Resources
		if r.Limits.Memory().String() != c.memory || r.Requests.Memory().Cmp(*r.Limits.Memory()) != 0 || *p.TerminationGracePeriodSeconds != c.seconds {
			t.Errorf("%s: memory %s, %s, stop %d s; want %s, %d", c.values, r.Limits.Memory(), r.Requests.Memory(), *p.TerminationGracePeriodSeconds, c.memory, c.seconds)
		}
	}
	all := render(t, readValues(t, "all.yaml"))
	p := deployment(t, all).Spec.Template.Spec
	if p.Containers[0].Resources.Limits.Memory().String() != "1Gi" || *p.TerminationGracePeriodSeconds != 130 || p.Containers[0].Lifecycle.PreStop.Sleep.Seconds != 5 {
		t.Errorf("%+v, %d", p.Containers[0].Resources, *p.TerminationGracePeriodSeconds)
	}
	if m := get[*monitoringv1.PodMonitor](t, all, "PodMonitor "+namespace+"/"+fullname); m.Spec.PodMetricsEndpoints[0].Authorization.Credentials.Name != "token" {
		t.Errorf("%+v", m.Spec)
	}
}

// kvconnd takes the settings that the chart writes, as they are in the pod.
func TestKvconndTakesTheSettings(t *testing.T) {
	program := kvconnd(t)
	t.Setenv("KVCONND", program)
	for name, v := range variants(t) {
		all := render(t, v)
		dir := t.TempDir()
		if o, ok := all["ConfigMap "+namespace+"/"+fullname].(*corev1.ConfigMap); ok {
			file := filepath.Join(dir, "kvconnd.yaml")
			// Memory of this machine is not that of a node.
			text := regexp.MustCompile(`host_bytes: .*`).ReplaceAllString(o.Data["kvconnd.yaml"], "host_bytes: 64MiB")
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			if out, err := run(t, []string{"KVCONN_HTTP_TOKEN=t"}, "config", "show", "--config", file); err != nil {
				t.Errorf("%s: %v\n%s\n%s", name, err, text, out)
			}
			mounts := daemonSet(t, all).Spec.Template.Spec.Containers[0].VolumeMounts
			for _, path := range regexp.MustCompile(`(?m)^(?:key_file|object_ca): "?(/[^"\n]+)`).FindAllStringSubmatch(text, -1) {
				if !slices.ContainsFunc(mounts, func(m corev1.VolumeMount) bool { return m.MountPath == filepath.Dir(path[1]) }) {
					t.Errorf("%s: nothing is mounted for %s", name, path[1])
				}
			}
		}
		if o, ok := all["ConfigMap "+namespace+"/"+fullname+"-router"].(*corev1.ConfigMap); ok {
			file := filepath.Join(dir, "router.yaml")
			if err := os.WriteFile(file, []byte(o.Data["router.yaml"]), 0o600); err != nil {
				t.Fatal(err)
			}
			out, err := run(t, []string{"KVCONN_ROUTER_TOKEN=t", "KUBERNETES_SERVICE_HOST=10.0.0.1"}, "config", "router", "--config", file)
			if err != nil {
				t.Errorf("%s: %v\n%s\n%s", name, err, o.Data["router.yaml"], out)
			}
			if name == "all" && !strings.Contains(out, `"daemons":"cache-kvconn","daemons_port":9477`) {
				t.Errorf("the router does not know the daemons:\n%s", out)
			}
		}
	}
}
