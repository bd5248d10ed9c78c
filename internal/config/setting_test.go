package config

import (
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// The three names of a setting follow from each other: to know one is to know all.
func TestEverySettingHasOneName(t *testing.T) {
	for f := range fields(reflect.TypeFor[Serve]()) {
		tag := f.Tag
		flag, env := tag.Get("name"), tag.Get("env")
		if want := envPrefix + strings.ToUpper(Key(flag)); flag == "" || env != want {
			t.Errorf("%s: flag %q, environment %q; want %s", f.Name, flag, env, want)
		}
		if tag.Get("help") == "" {
			t.Errorf("%s has no help", flag)
		}
	}
}

func TestSettingsListEveryValueWithItsSource(t *testing.T) {
	s := Serve{Dir: "/d", MaxBytes: Cap{Space{Set: true, Bytes: 1 << 30}}, LoadTimeout: 3 * time.Second, HTTPRemote: true}
	got := Settings(s, func(flag string) Source {
		if flag == "max-bytes" {
			return Source{Kind: FromFile, Name: "/etc/kvconnd.yaml"}
		}
		return Source{Kind: FromDefault}
	})
	values := make(map[string]string)
	for _, set := range got {
		values[set.Key] = set.Value + " from " + set.From.String()
	}
	for key, want := range map[string]string{
		"dir": "/d from default", "max_bytes": "1GiB from file /etc/kvconnd.yaml", "load_timeout": "3s from default", "http_remote": "true from default",
	} {
		if values[key] != want {
			t.Errorf("%s: %q, want %q", key, values[key], want)
		}
	}
	if len(got) != len(keysOf[Serve]()) {
		t.Errorf("%d settings", len(got))
	}
}

func TestSecretsAreMasked(t *testing.T) {
	values := make(map[string]string)
	for _, s := range Settings(Router{Token: "hunter2"}, func(string) Source { return Source{Kind: FromEnvironment, Name: "X"} }) {
		values[s.Key] = s.Value
	}
	if values["token"] != masked || values["engine_key"] != "" {
		t.Errorf("settings %v", values)
	}
}

func TestMisspeltEnvironmentVariablesAreErrors(t *testing.T) {
	known := []string{"KVCONN_DIR", "KVCONN_SOCKET", "KVCONN_MAX_BYTES"}
	for entry, want := range map[string]string{
		"KVCONN_DIR=/d":                               "",
		"KVCONN_SOCKT=/s":                             "unknown environment variable KVCONN_SOCKT, did you mean KVCONN_SOCKET?",
		"KVCONN_MAXBYTES=1":                           "did you mean KVCONN_MAX_BYTES?",
		"KVCONND_IS=1":                                "",
		"KVCONN_TEST_LONG=1":                          "",
		"KVCONN_SERVICE_HOST=10.0.0.1":                "",
		"KVCONN_SERVICE_PORT_HTTP=80":                 "",
		"KVCONN_PORT=tcp://10.0.0.1:80":               "",
		"KVCONN_PORT_80_TCP_ADDR=10.0.0.1":            "",
		"KVCONN_ROUTER_SERVICE_PORT=80":               "",
		"KVCONN_ROUTER_PORT_80_TCP=tcp://10.0.0.1:80": "",
		"KVCONN_SOCKET_=1":                            "unknown environment variable KVCONN_SOCKET_",
		"KVCONN_PORT_RANGE=1":                         "",
		"KVCONN_NODE_NAME=n":                          "",
		"PATH=/bin":                                   "",
	} {
		_, err := CheckEnvironment([]string{entry}, known)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", entry, err, want)
		}
	}
	foreign, err := CheckEnvironment([]string{"KVCONN_NODE_NAME=1", "KVCONN_SOCKETS=1", "KVCONN_DIRS=1", "KVCONN_DIR=1", "KVCONN_HOST_IP=1"}, known)
	if err == nil || strings.Index(err.Error(), "KVCONN_DIRS") > strings.Index(err.Error(), "KVCONN_SOCKETS") {
		t.Errorf("two misspelt ones: %v, want both in order", err)
	}
	if !slices.Equal(foreign, []string{"KVCONN_HOST_IP", "KVCONN_NODE_NAME"}) {
		t.Errorf("foreign ones: %v", foreign)
	}
}

func TestEverySettingIsDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range keysOf[Serve]() {
		if !strings.Contains(string(doc), "| `"+key+"` |") {
			t.Errorf("docs/configuration.md does not describe %s", key)
		}
	}
}

func TestEveryRouterSettingIsDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../docs/router-operate.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range keysOf[Router]() {
		if key == ranksKey { // the flag's name there
			key = "rank"
		}
		if !strings.Contains(string(doc), "| `"+key+"` |") {
			t.Errorf("docs/router-operate.md does not describe %s", key)
		}
	}
}
