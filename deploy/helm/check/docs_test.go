package check

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// What docs/kubernetes.md shows is right: values that the chart takes, and a patch of engines that fits the chart's objects
// and has what kvconnd prints for vLLM.
func TestTheGuidesExamplesWork(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(repository(t), "docs/kubernetes.md"))
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(b), -1)
	all, claims, patch := objects(nil), objects(nil), ""
	for _, m := range blocks {
		if strings.HasPrefix(m[1], "spec:") {
			patch = m[1]
			continue
		}
		made := render(t, parse(t, m[1]))
		if strings.Contains(m[1], "engineNamespaces") {
			files, err := templateAs(load(t), parse(t, m[1]), "cache", "kvconn") // as the guide installs it
			if err != nil {
				t.Fatal(err)
			}
			all, claims = made, read(t, files)
		}
	}
	if len(blocks) < 3 || patch == "" || all == nil {
		t.Fatalf("%d examples", len(blocks))
	}
	var d appsv1.Deployment
	if err := yaml.UnmarshalStrict([]byte(patch), &d); err != nil {
		t.Fatal(err)
	}
	pod := d.Spec.Template.Spec
	claim := pod.Volumes[0].PersistentVolumeClaim
	get[*corev1.PersistentVolumeClaim](t, claims, "PersistentVolumeClaim inference/"+claim.ClaimName)
	daemon := daemonSet(t, all).Spec.Template.Spec
	if !claim.ReadOnly || pod.SecurityContext.SupplementalGroups[0] != *daemon.SecurityContext.FSGroup {
		t.Errorf("%+v", pod)
	}
	mount := pod.Containers[0].VolumeMounts[0]
	out, err := run(t, nil, "config", "vllm", "--socket", mount.MountPath+"/kvconnd.sock")
	if err != nil {
		t.Fatal(err, out)
	}
	var printed, shown any
	if err := json.Unmarshal([]byte(out), &printed); err != nil {
		t.Fatal(err, out)
	}
	if err := json.Unmarshal([]byte(pod.Containers[0].Args[1]), &shown); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(printed, shown) {
		t.Errorf("the guide shows %v, kvconnd prints %v", shown, printed)
	}
}
