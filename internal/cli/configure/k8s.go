package configure

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/kvconn/kvconn/internal/cli/terminal"
)

// k8sCmd is `kvconnd config k8s`.
type k8sCmd struct {
	Name      string `name:"name" default:"vllm" placeholder:"NAME" help:"Name of the Deployment (default vllm)."`
	Namespace string `name:"namespace" placeholder:"NAME" help:"Its namespace. Default: that of kubectl."`
	Container string `name:"container" default:"vllm" placeholder:"NAME" help:"Its container that runs vLLM (default vllm)."`
	Release   string `name:"release" default:"cache" placeholder:"NAME" help:"Release of kvconn's Helm chart, whose claim has the socket's folder (default cache)."`
	// ReleaseNamespace is part of the claim's name in every other namespace.
	ReleaseNamespace string   `name:"release-namespace" default:"kvconn" placeholder:"NAME" help:"Namespace of that release (default kvconn)."`
	HostPath         string   `name:"host-path" placeholder:"DIR" help:"The socket's folder on the nodes, where the daemon was not installed with the chart's volumes. Default: the claim."`
	Socket           string   `name:"socket" default:"/run/kvconn/kvconnd.sock" placeholder:"PATH" help:"The socket in the engine's container: its folder is mounted (default ${default})."`
	Group            int64    `name:"group" default:"10473" placeholder:"GID" help:"Group that may use the socket; 0 for engines that run as root (default 10473, the chart's)."`
	Args             []string `arg:"" optional:"" passthrough:"partial" name:"args" help:"The container's present args, after --."`
	vllmSettings
}

// Help is shown below the command's summary.
func (*k8sCmd) Help() string {
	return `Prints a strategic merge patch that connects a Deployment of vLLM to the daemon of its node:

  kvconnd config k8s --tier -- serve Qwen/Qwen3-8B --port 8000 > patch.yaml
  kubectl patch deployment vllm --patch-file patch.yaml

A patch replaces the args of a container, so give the present ones after --. kubectl shows them:

  kubectl get deployment vllm -o jsonpath='{.spec.template.spec.containers[?(@.name=="vllm")].args}'

A single argument with spaces is taken for a line of a shell, and is added to. The patch mounts the folder of the socket and not
the socket: each start of the daemon makes another one. With --tier vLLM's region takes --region-bytes of memory in
/dev/shm, which the patch makes and which counts as the pod's memory: raise its limit. The label kvconn/engine marks the pods.`
}

// defaultRegionBytes are for a node that is not this machine.
const defaultRegionBytes = 16 << 30

// shmRoom is what vLLM's processes need of /dev/shm besides the region.
const shmRoom = 1 << 30

// Validate reports what Kubernetes would refuse.
func (c *k8sCmd) Validate() error {
	name := regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$`)
	for flag, value := range map[string]string{"name": c.Name, "container": c.Container, "release": c.Release, "release-namespace": c.ReleaseNamespace, "namespace": c.Namespace} {
		if !name.MatchString(value) && (flag != "namespace" || value != "") {
			return fmt.Errorf("--%s is %q: no name that Kubernetes takes", flag, value)
		}
	}
	switch {
	case !path.IsAbs(c.Socket) || path.Dir(c.Socket) == "/":
		return fmt.Errorf("--socket is %q: an absolute path, in a folder of its own", c.Socket)
	case c.HostPath != "" && !path.IsAbs(c.HostPath):
		return fmt.Errorf("--host-path is %q: an absolute path", c.HostPath)
	case c.Group < 0:
		return errors.New("--group must be positive")
	}
	return c.vllmSettings.Validate()
}

// The parts of a Deployment that the patch has, in the order in which people write them.
type (
	k8sPatch struct {
		APIVersion string      `yaml:"apiVersion"`
		Kind       string      `yaml:"kind"`
		Metadata   k8sMetadata `yaml:"metadata"`
		Spec       struct {
			Template k8sTemplate `yaml:"template"`
		} `yaml:"spec"`
	}
	k8sMetadata struct {
		Name      string            `yaml:"name,omitempty"`
		Namespace string            `yaml:"namespace,omitempty"`
		Labels    map[string]string `yaml:"labels,omitempty"`
	}
	k8sTemplate struct {
		Metadata k8sMetadata `yaml:"metadata"`
		Spec     k8sPod      `yaml:"spec"`
	}
	k8sPod struct {
		Security   *k8sSecurity   `yaml:"securityContext,omitempty"`
		Containers []k8sContainer `yaml:"containers"`
		Volumes    []k8sVolume    `yaml:"volumes"`
	}
	k8sSecurity struct {
		Groups []int64 `yaml:"supplementalGroups"`
	}
	k8sContainer struct {
		Name   string     `yaml:"name"`
		Args   []string   `yaml:"args"`
		Mounts []k8sMount `yaml:"volumeMounts"`
	}
	k8sMount struct {
		Name string `yaml:"name"`
		Path string `yaml:"mountPath"`
	}
	k8sVolume struct {
		Name     string            `yaml:"name"`
		Claim    map[string]string `yaml:"persistentVolumeClaim,omitempty"`
		HostPath map[string]string `yaml:"hostPath,omitempty"`
		EmptyDir map[string]string `yaml:"emptyDir,omitempty"`
	}
)

// Run prints the patch and nothing else.
func (c *k8sCmd) Run(std *terminal.Streams) error {
	if len(c.Args) > 0 && c.Args[0] == "--" {
		c.Args = c.Args[1:]
	}
	if len(c.Args) == 0 {
		return errors.New("a patch replaces the container's args: give the present ones after --; kvconnd config k8s --help shows how to find them")
	}
	if c.Tier && c.RegionBytes == 0 {
		c.RegionBytes = defaultRegionBytes
	}
	config, err := c.json(c.Socket)
	if err != nil {
		return err
	}
	args, err := withConfig(c.Args, string(config))
	if err != nil {
		return err
	}
	enc := yaml.NewEncoder(std.Out)
	enc.SetIndent(2)
	if err := enc.Encode(c.patch(args)); err != nil {
		return err
	}
	return enc.Close()
}

// withConfig are args with vLLM's configuration of the connector added.
func withConfig(args []string, config string) ([]string, error) {
	const flag = "--kv-transfer-config"
	for _, a := range args {
		if strings.Contains(a, flag) {
			return nil, fmt.Errorf("the args have %s already: leave it out, with its value", flag)
		}
	}
	if len(args) == 1 && strings.ContainsAny(args[0], " \n") { // of sh -c
		return []string{strings.TrimRight(args[0], " \n\\") + " " + flag + " '" + config + "'"}, nil
	}
	return append(args[:len(args):len(args)], flag, config), nil
}

func (c *k8sCmd) patch(args []string) *k8sPatch {
	p := &k8sPatch{APIVersion: "apps/v1", Kind: "Deployment", Metadata: k8sMetadata{Name: c.Name, Namespace: c.Namespace}}
	t := &p.Spec.Template
	t.Metadata.Labels = map[string]string{"kvconn/engine": "vllm"}
	if c.Group > 0 {
		t.Spec.Security = &k8sSecurity{Groups: []int64{c.Group}}
	}
	engine := k8sContainer{Name: c.Container, Args: args, Mounts: []k8sMount{{"kvconn", path.Dir(c.Socket)}}}
	folder := k8sVolume{Name: "kvconn", Claim: map[string]string{"claimName": claimName(c.Release, c.ReleaseNamespace, c.Namespace)}}
	if c.HostPath != "" {
		folder.Claim, folder.HostPath = nil, map[string]string{"path": c.HostPath, "type": "Directory"}
	}
	t.Spec.Volumes = []k8sVolume{folder}
	if c.Tier {
		engine.Mounts = append(engine.Mounts, k8sMount{"kvconn-region", "/dev/shm"})
		limit := fmt.Sprintf("%dMi", (int64(c.RegionBytes)+shmRoom+1<<20-1)>>20)
		t.Spec.Volumes = append(t.Spec.Volumes, k8sVolume{Name: "kvconn-region", EmptyDir: map[string]string{"medium": "Memory", "sizeLimit": limit}})
	}
	t.Spec.Containers = []k8sContainer{engine}
	return p
}
