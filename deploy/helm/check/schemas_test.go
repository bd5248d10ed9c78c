package check

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// settingsSchema is what kvconnd prints for a command's file, compiled.
func settingsSchema(t *testing.T, command string) *jsonschema.Schema {
	t.Helper()
	out, err := run(t, nil, "config", "schema", command)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	document, err := jsonschema.UnmarshalJSON(strings.NewReader(out))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("settings.json", document); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("settings.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// judge is what a schema says of a file.
func judge(t *testing.T, s *jsonschema.Schema, text string) error {
	t.Helper()
	b, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	var v any
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	return s.Validate(v)
}

// The schemas that kvconnd prints for editors are sound, and take what the chart writes.
func TestSchemasTakeTheChartsFiles(t *testing.T) {
	t.Setenv("KVCONND", kvconnd(t))
	serve, router := settingsSchema(t, "serve"), settingsSchema(t, "router")
	for name, v := range variants(t) {
		all := render(t, v)
		if o, ok := all["ConfigMap "+namespace+"/"+fullname].(*corev1.ConfigMap); ok {
			if err := judge(t, serve, o.Data["kvconnd.yaml"]); err != nil {
				t.Errorf("%s: %v\n%s", name, err, o.Data["kvconnd.yaml"])
			}
		}
		if o, ok := all["ConfigMap "+namespace+"/"+fullname+"-router"].(*corev1.ConfigMap); ok {
			if err := judge(t, router, o.Data["router.yaml"]); err != nil {
				t.Errorf("%s: %v\n%s", name, err, o.Data["router.yaml"])
			}
		}
	}
}

func TestSchemasRefuseMistakes(t *testing.T) {
	t.Setenv("KVCONND", kvconnd(t))
	serve, router := settingsSchema(t, "serve"), settingsSchema(t, "router")
	for _, c := range []struct {
		schema *jsonschema.Schema
		text   string
		right  bool
	}{
		{serve, "{dir: /x, max_bytes: 500GB, min_free: 5%, load_timeout: 10s, object_max_age: 0, prompts_only: true, http: 127.0.0.1:0}", true},
		{serve, "{max_bytes: 1000000000, socket_mode: 0660, allow_uids: 1000, http_token: 12345}", true},
		{serve, "{}", true},
		{serve, "{max_byte: 500GB}", false},
		{serve, "{max_bytes: 500 gigabytes}", false},
		{serve, "{load_timeout: 10}", false},
		{serve, "{prompts_only: maybe}", false},
		{serve, "{object_style: vhost}", false},
		{serve, "{ranks: []}", false},
		{router, `{policy: cost, ranks: [{model: m, endpoint: "http://a:1", dp_mode: hybrid, events: {endpoint: "tcp://a:1"}, speeds: {prefill_tokens_per_s: 1000}}]}`, true},
		{router, `{discovery: [{service: vllm, rank: {model: m, endpoint: "http://{address}:1"}}, {file: /x, interval: 2s}]}`, true},
		{router, `{ranks: [{modle: m, endpoint: "http://a:1"}]}`, false},
		{router, `{ranks: [{model: m}]}`, false},
		{router, `{ranks: [{model: m, endpoint: "http://a:1", engine: llama}]}`, false},
		{router, `{ranks: [{model: m, endpoint: "http://a:1", events: tcp://a:1}]}`, false},
		{router, `{dir: /x}`, false},
	} {
		if err := judge(t, c.schema, c.text); (err == nil) != c.right {
			t.Errorf("%s: %v", c.text, err)
		}
	}
}
