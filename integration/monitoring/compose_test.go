package monitoring

import (
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
	"github.com/prometheus/prometheus/config"
	_ "github.com/prometheus/prometheus/discovery/dns" // for dns_sd_configs

	"github.com/kvconn/kvconn/internal/version"
)

const composeDir = root + "/deploy/compose"

// composed reads the example as `docker compose` does, and is strict about what it does not know.
func composed(t *testing.T) *types.Project {
	t.Helper()
	dir, err := filepath.Abs(composeDir)
	if err != nil {
		t.Fatal(err)
	}
	p, err := loader.LoadWithContext(t.Context(), types.ConfigDetails{
		WorkingDir: dir, ConfigFiles: []types.ConfigFile{{Filename: filepath.Join(dir, "compose.yaml")}}, Environment: types.Mapping{"KVCONN_TOKEN": "t0ken"},
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// asked runs kvconnd with the environment of a service.
func asked(t *testing.T, s *types.ServiceConfig, args ...string) string {
	t.Helper()
	cmd := exec.Command(binary(t), args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}
	for key, value := range s.Environment {
		cmd.Env = append(cmd.Env, key+"="+*value)
	}
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Errorf("kvconnd %q: %v\n%s%s", args, err, out, &errs)
	}
	return string(out)
}

// The settings of daemon and router are ones that they take, and the engine is given what the command prints.
func TestTheComposeFileHasSettingsThatWork(t *testing.T) {
	t.Setenv("KVCONND", binary(t))
	p := composed(t)
	daemon, router, engine := p.Services["kvconnd"], p.Services["router"], p.Services["engine"]
	if daemon.Image != "kvconnd:"+version.Number() || router.Image != daemon.Image {
		t.Errorf("images %s and %s", daemon.Image, router.Image)
	}
	if daemon.Command[0] != "serve" || router.Command[0] != "router" {
		t.Fatalf("%q, %q", daemon.Command, router.Command)
	}
	if got := asked(t, &daemon, append([]string{"config", "show"}, daemon.Command[1:]...)...); !strings.Contains(got, "0.0.0.0:9477") || strings.Contains(got, "t0ken") {
		t.Error(got)
	}
	file := filepath.Join(t.TempDir(), "router.yaml")
	if err := os.WriteFile(file, []byte(p.Configs["router"].Content), 0o600); err != nil {
		t.Fatal(err)
	}
	if router.Command[2] != router.Configs[0].Target {
		t.Errorf("the router reads %s, its file is %s", router.Command[2], router.Configs[0].Target)
	}
	if got := asked(t, &router, "config", "router", "--config", file); !strings.Contains(got, "0.0.0.0:9478") || !strings.Contains(got, "Qwen/Qwen3-8B") {
		t.Error(got)
	}
	printed := asked(t, &types.ServiceConfig{}, "config", "vllm", "--tier", "--socket", "/run/kvconn/kvconnd.sock", "--region-bytes", "8GiB")
	if i := slices.Index(engine.Command, "--kv-transfer-config"); i < 0 || engine.Command[i+1] != strings.TrimSpace(printed) {
		t.Errorf("the engine is given %q, the command prints %s", engine.Command, printed)
	}
	for _, s := range []types.ServiceConfig{daemon, engine} {
		if !slices.ContainsFunc(s.Volumes, func(v types.ServiceVolumeConfig) bool { return v.Source == "run" && v.Target == "/run/kvconn" }) {
			t.Errorf("%s does not have the socket's folder: %+v", s.Name, s.Volumes)
		}
	}
}

func TestTheComposeFileMountsWhatIsThere(t *testing.T) {
	p := composed(t)
	for _, s := range p.Services {
		for _, v := range s.Volumes {
			if _, err := os.Stat(v.Source); v.Type == types.VolumeTypeBind && err != nil {
				t.Errorf("%s: %v", s.Name, err)
			}
		}
		for _, port := range s.Ports {
			if port.HostIP != "127.0.0.1" {
				t.Errorf("%s is open to the network: %+v", s.Name, port)
			}
		}
	}
	c, err := config.LoadFile(filepath.Join(composeDir, "prometheus.yaml"), false, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range c.ScrapeConfigs {
		if kvconn := strings.Contains(s.JobName, "kvconn"); (s.HTTPClientConfig.Authorization != nil) != kvconn {
			t.Errorf("%s: %+v", s.JobName, s.HTTPClientConfig)
		}
	}
}
