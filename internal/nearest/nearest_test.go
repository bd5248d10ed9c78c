package nearest

import "testing"

func TestOnlyWhatIsNearIsMeant(t *testing.T) {
	names := []string{"model", "node", "endpoint", "events", "KVCONN_CONFIG", "KVCONN_MAX_BYTES", "dir"}
	for name, want := range map[string]string{
		"modle": "model", "model_": "model", "evnts": "events", "endpont": "endpoint", "KVCONN_MAX_BYTE": "KVCONN_MAX_BYTES",
		"serve": "", "x": "", "": "", "KVCONN_NODE_NAME": "", "dri": "dir", "temperature": "",
	} {
		if got := Of(name, names); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
	if got := Hint("modle", names); got != `, did you mean "model"?` {
		t.Error(got)
	}
	if got := Hint("serve", names) + Hint("x", nil); got != "" {
		t.Error(got)
	}
}
