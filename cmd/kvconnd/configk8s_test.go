package main

import (
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

const k8sDirect = `apiVersion: apps/v1
kind: Deployment
metadata:
  name: vllm
spec:
  template:
    metadata:
      labels:
        kvconn/engine: vllm
    spec:
      securityContext:
        supplementalGroups:
          - 10473
      containers:
        - name: vllm
          args:
            - serve
            - Qwen/Qwen3-8B
            - --port
            - "8000"
            - --kv-transfer-config
            - '{"kv_connector":"KVConnConnector","kv_connector_module_path":"kvconn.vllm","kv_role":"kv_both","kv_load_failure_policy":"recompute","kv_connector_extra_config":{"socket":"/run/kvconn/kvconnd.sock"}}'
          volumeMounts:
            - name: kvconn
              mountPath: /run/kvconn
      volumes:
        - name: kvconn
          persistentVolumeClaim:
            claimName: kvconn.cache-kvconn-run
`

func TestConfigK8sPrintsAPatch(t *testing.T) {
	t.Setenv("KVCONN_SOCKET", "/elsewhere.sock") // of this machine, not of the cluster
	status, out, errs := kvconnd("config", "k8s", "--", "serve", "Qwen/Qwen3-8B", "--port", "8000")
	if status != 0 || out != k8sDirect || errs != "" {
		t.Errorf("status %d, %s\n%s", status, errs, out)
	}
}

func TestConfigK8sFollowsItsFlags(t *testing.T) {
	status, out, errs := kvconnd("config", "k8s", "--tier", "--region-bytes", "2GiB", "--name", "engine", "--namespace", "inference", "--container", "main",
		"--host-path", "/srv/run", "--socket", "/srv/kvconn/s", "--group", "0", "--", "exec vllm serve m \\\n --port 1\n")
	if status != 0 || errs != "" {
		t.Fatalf("status %d, %s", status, errs)
	}
	var p struct {
		Metadata struct{ Name, Namespace string }
		Spec     struct {
			Template struct {
				Spec struct {
					SecurityContext any `yaml:"securityContext"`
					Containers      []struct {
						Name         string
						Args         []string
						VolumeMounts []struct {
							MountPath string `yaml:"mountPath"`
						} `yaml:"volumeMounts"`
					}
					Volumes []struct {
						HostPath map[string]string `yaml:"hostPath"`
						EmptyDir map[string]string `yaml:"emptyDir"`
					}
				}
			}
		}
	}
	if err := yaml.Unmarshal([]byte(out), &p); err != nil {
		t.Fatal(err)
	}
	pod := p.Spec.Template.Spec
	engine := pod.Containers[0]
	if p.Metadata.Name != "engine" || p.Metadata.Namespace != "inference" || engine.Name != "main" || pod.SecurityContext != nil {
		t.Errorf("%+v", p)
	}
	if len(engine.Args) != 1 || !strings.HasPrefix(engine.Args[0], "exec vllm serve m \\\n --port 1 --kv-transfer-config '{") ||
		!strings.Contains(engine.Args[0], `"cpu_bytes_to_use":2147483648`) || !strings.HasSuffix(engine.Args[0], "'") {
		t.Errorf("args %q", engine.Args)
	}
	if engine.VolumeMounts[0].MountPath != "/srv/kvconn" || engine.VolumeMounts[1].MountPath != "/dev/shm" ||
		pod.Volumes[0].HostPath["path"] != "/srv/run" || pod.Volumes[1].EmptyDir["sizeLimit"] != "3072Mi" {
		t.Errorf("%+v", pod)
	}
	for want, flags := range map[string][]string{
		"kvconn.kvconn-run":      {"--release", "kvconn"},
		"infra.cache-kvconn-run": {"--release-namespace", "infra", "--namespace", "inference"},
		"cache-kvconn-run":       {"--release-namespace", "infra", "--namespace", "infra"},
	} {
		if _, out, _ := kvconnd(append(append([]string{"config", "k8s"}, flags...), "--", "serve")...); !strings.Contains(out, "claimName: "+want+"\n") {
			t.Errorf("%q: the claim is not %s:\n%s", flags, want, out)
		}
	}
}

func TestConfigK8sRefusesWhatCannotWork(t *testing.T) {
	for want, args := range map[string][]string{
		"after --":          nil,
		"already":           {"--", "serve", "--kv-transfer-config={}"},
		"no name":           {"--name", "A b", "--", "serve"},
		"folder of its own": {"--socket", "/s", "--", "serve"},
		"--host-path":       {"--host-path", "x", "--", "serve"},
		"unknown flag":      {"--releese", "x", "--", "serve"},
		"need --tier":       {"--canonical", "--", "serve"},
		"must be positive":  {"--group=-1", "--", "serve"},
	} {
		if status, out, errs := kvconnd(append([]string{"config", "k8s"}, args...)...); status == 0 || out != "" || !strings.Contains(errs, want) {
			t.Errorf("%v: status %d, %q, %q; want %q", args, status, out, errs, want)
		}
	}
}
