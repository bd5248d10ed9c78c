package check

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

const (
	chartDir  = "../kvconn"
	release   = "cache"
	namespace = "kvconn-system"
	fullname  = "cache-kvconn"
)

// values are a chart's, as a file has them.
type values = map[string]any

func parse(t *testing.T, text string) values {
	t.Helper()
	var v values
	if err := yaml.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func readValues(t *testing.T, name string) values {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return parse(t, string(b))
}

func load(t *testing.T) *chart.Chart {
	t.Helper()
	c, err := loader.LoadDir(chartDir)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// kubeVersion is the oldest Kubernetes that the chart is for.
func kubeVersion() chartutil.KubeVersion {
	return chartutil.KubeVersion{Version: "v1.27.0", Major: "1", Minor: "27"}
}

// template does what `helm template` does.
func template(c *chart.Chart, v values) (map[string]string, error) {
	return templateAs(c, v, release, namespace)
}

// templateAs is template for a release of another name or namespace.
func templateAs(c *chart.Chart, v values, release, namespace string) (map[string]string, error) {
	o := chartutil.ReleaseOptions{Name: release, Namespace: namespace, IsInstall: true, Revision: 1}
	caps := chartutil.DefaultCapabilities.Copy()
	caps.KubeVersion = kubeVersion()
	if !chartutil.IsCompatibleRange(c.Metadata.KubeVersion, caps.KubeVersion.Version) {
		return nil, fmt.Errorf("kubeVersion %s does not allow %s", c.Metadata.KubeVersion, caps.KubeVersion.Version)
	}
	all, err := chartutil.ToRenderValues(c, v, o, caps)
	if err != nil {
		return nil, err
	}
	return engine.Render(c, all)
}

// objects are what a chart makes, by kind and name, as the API's types take them.
type objects map[string]metav1.Object

// kinds are the types of what the chart may make.
func kinds() map[string]func() metav1.Object {
	return map[string]func() metav1.Object{
		"v1 ConfigMap":                             func() metav1.Object { return new(corev1.ConfigMap) },
		"v1 Secret":                                func() metav1.Object { return new(corev1.Secret) },
		"v1 Service":                               func() metav1.Object { return new(corev1.Service) },
		"v1 ServiceAccount":                        func() metav1.Object { return new(corev1.ServiceAccount) },
		"v1 PersistentVolume":                      func() metav1.Object { return new(corev1.PersistentVolume) },
		"v1 PersistentVolumeClaim":                 func() metav1.Object { return new(corev1.PersistentVolumeClaim) },
		"apps/v1 DaemonSet":                        func() metav1.Object { return new(appsv1.DaemonSet) },
		"apps/v1 Deployment":                       func() metav1.Object { return new(appsv1.Deployment) },
		"policy/v1 PodDisruptionBudget":            func() metav1.Object { return new(policyv1.PodDisruptionBudget) },
		"networking.k8s.io/v1 NetworkPolicy":       func() metav1.Object { return new(networkingv1.NetworkPolicy) },
		"rbac.authorization.k8s.io/v1 Role":        func() metav1.Object { return new(rbacv1.Role) },
		"rbac.authorization.k8s.io/v1 RoleBinding": func() metav1.Object { return new(rbacv1.RoleBinding) },
		"monitoring.coreos.com/v1 PodMonitor":      func() metav1.Object { return new(monitoringv1.PodMonitor) },
		"monitoring.coreos.com/v1 PrometheusRule":  func() metav1.Object { return new(monitoringv1.PrometheusRule) },
	}
}

// render returns the objects of the chart, each read strictly: a field that the API does not have, or has twice, is an error.
func render(t *testing.T, v values) objects {
	t.Helper()
	return renderChart(t, load(t), v)
}

func renderChart(t *testing.T, c *chart.Chart, v values) objects {
	t.Helper()
	files, err := template(c, v)
	if err != nil {
		t.Fatal(err)
	}
	return read(t, files)
}

// read returns the objects of rendered files.
func read(t *testing.T, files map[string]string) objects {
	t.Helper()
	all, kinds := objects{}, kinds()
	for _, file := range slices.Sorted(maps.Keys(files)) {
		if !strings.HasSuffix(file, ".yaml") {
			continue
		}
		for _, text := range regexp.MustCompile(`(?m)^---$`).Split(files[file], -1) {
			if strings.TrimSpace(regexp.MustCompile(`(?m)^#.*$`).ReplaceAllString(text, "")) == "" {
				continue
			}
			var kind metav1.TypeMeta
			if err := yaml.Unmarshal([]byte(text), &kind); err != nil {
				t.Fatalf("%s: %v\n%s", file, err, text)
			}
			made := kinds[kind.APIVersion+" "+kind.Kind]
			if made == nil {
				t.Fatalf("%s: %s %s is no kind that the chart may make\n%s", file, kind.APIVersion, kind.Kind, text)
			}
			o := made()
			if err := yaml.UnmarshalStrict([]byte(text), o); err != nil {
				t.Fatalf("%s: %s: %v\n%s", file, kind.Kind, err, text)
			}
			key := kind.Kind + " " + o.GetNamespace() + "/" + o.GetName()
			if all[key] != nil {
				t.Errorf("%s is made twice", key)
			}
			all[key] = o
		}
	}
	return all
}

// get returns the object of a type and name.
func get[T metav1.Object](t *testing.T, all objects, key string) (o T) {
	t.Helper()
	o, ok := all[key].(T)
	if !ok {
		t.Fatalf("there is no %s; there are %v", key, slices.Sorted(maps.Keys(all)))
	}
	return o
}

func daemonSet(t *testing.T, all objects) *appsv1.DaemonSet {
	t.Helper()
	return get[*appsv1.DaemonSet](t, all, "DaemonSet "+namespace+"/"+fullname)
}

func deployment(t *testing.T, all objects) *appsv1.Deployment {
	t.Helper()
	return get[*appsv1.Deployment](t, all, "Deployment "+namespace+"/"+fullname+"-router")
}

// repository is the root of the checkout.
func repository(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// kvconnd is the daemon's program, which the variable KVCONND names or the test builds.
func kvconnd(t *testing.T) string {
	t.Helper()
	if path := os.Getenv("KVCONND"); path != "" {
		return path
	}
	path := filepath.Join(t.TempDir(), "kvconnd")
	cmd := exec.Command("go", "build", "-o", path, "./cmd/kvconnd")
	cmd.Dir = repository(t)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build kvconnd: %v\n%s", err, out)
	}
	return path
}

// run runs kvconnd without the settings of this process's environment.
func run(t *testing.T, env []string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.Command(kvconnd(t), args...)
	cmd.Env = append(env, "PATH="+os.Getenv("PATH"), "HOME="+t.TempDir())
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}
