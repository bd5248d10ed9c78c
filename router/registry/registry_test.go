package registry

import (
	"strings"
	"testing"
)

func rank(t *testing.T, text string) Rank {
	t.Helper()
	r, err := Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestHeaderIsWhatTheModeNeeds(t *testing.T) {
	for text, want := range map[string]string{
		`"dp_rank":3`:                                                                   "",
		`"dp_mode":"internal","dp_rank":3`:                                              "3",
		`"dp_mode":"internal"`:                                                          "0",
		`"dp_mode":"hybrid","dp_rank":11,"dp_start_rank":8`:                             "3",
		`"dp_mode":"hybrid","dp_rank":8,"dp_start_rank":8`:                              "0",
		`"dp_mode":"external","dp_rank":1,"draining":true`:                              "",
		`"dp_mode":"hybrid","dp_rank":2,"namespace":"` + strings.Repeat("aB", 32) + `"`: "2",
	} {
		r := rank(t, `{"model":"m","endpoint":"http://h:1",`+text+`}`)
		if got := r.HeaderValue(); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}

func TestWhatCannotWorkIsRefused(t *testing.T) {
	for text, want := range map[string]string{
		``:                                     "EOF",
		`{`:                                    "rank",
		`{} {}`:                                "more than one",
		`{"modell":"m"}`:                       "unknown field",
		`{"endpoint":"x"}`:                     "model is empty",
		`{"id":-1}`:                            "negative",
		`{"model":"m"}`:                        "endpoint",
		`{"model":"m","endpoint":"tcp://h:1"}`: "http://host:port",
		`{"model":"m","endpoint":"http://u:p@h"}`:                                                                         "http://host:port",
		`{"model":"m","endpoint":"http://h","engine":"x"}`:                                                                "vllm, sglang or",
		`{"model":"m","endpoint":"http://h","dp_mode":"x"}`:                                                               "dp_mode",
		`{"model":"m","endpoint":"http://h","dp_rank":70000}`:                                                             "dp_rank",
		`{"model":"m","endpoint":"http://h","dp_start_rank":1}`:                                                           "hybrid",
		`{"model":"m","endpoint":"http://h","dp_mode":"hybrid","dp_start_rank":1}`:                                        "below",
		`{"model":"m","endpoint":"http://h","block_size":-1}`:                                                             "block_size",
		`{"model":"m","endpoint":"http://h","max_active":-1}`:                                                             "max_active",
		`{"model":"m","endpoint":"http://h","node_url":"http://h"}`:                                                       "needs node",
		`{"model":"m","endpoint":"http://h","node":"n","node_url":"h"}`:                                                   "node_url",
		`{"model":"m","endpoint":"http://h","events":{}}`:                                                                 "events.endpoint",
		`{"model":"m","endpoint":"http://h","speeds":{"disk_bytes_per_s":-1}}`:                                            "speed",
		`{"model":"m","endpoint":"http://h","adapters":["m"]}`:                                                            "adapter",
		`{"model":"` + strings.Repeat("m", 300) + `","endpoint":"http://h"}`:                                              "longer",
		`{"model":"m","endpoint":"http://` + strings.Repeat("h", 3000) + `"}`:                                             "http://host:port",
		`{"model":"m","endpoint":"http://h","events":{"endpoint":"e","topik":"x"}}`:                                       "unknown field",
		`{"model":"m","endpoint":"http://h","bucket_url":"http://h","max_tokens":-5}`:                                     "max_tokens",
		`{"model":"m","endpoint":"http://h","bucket_url":"http://h"}`:                                                     "needs bucket",
		`{"model":"m","endpoint":"http://h","speeds":{"prefill_tokens_per_s":"NaN"}}`:                                     "rank",
		`{"model":"m","endpoint":"http://h","dp_mode":"internal","dp_start_rank":-1}`:                                     "dp_start_rank",
		`{"model":"m","endpoint":"http://h","namespace":"abcdef"}`:                                                        "64 hexadecimal",
		`{"model":"m","endpoint":"http://h","events":{"endpoint":"tcp://*:5557"}}`:                                        "name the engine's host",
		`{"model":"m","endpoint":"http://h","events":{"endpoint":"tcp://[::]:5557"}}`:                                     "name the engine's host",
		`{"model":"m","endpoint":"http://h","events":{"endpoint":"tcp://h:70000"}}`:                                       "is no port",
		`{"model":"m","endpoint":"http://h","events":{"endpoint":"tcp://h"}}`:                                             "tcp://host:port",
		`{"model":"m","endpoint":"http://h","events":{"endpoint":"tcp://*:1","bind":true,"replay_endpoint":"tcp://*:2"}}`: "events.replay_endpoint",
		`{"model":"m","endpoint":"http://h?x=1","dp_mode":"internal"}`:                                                    "http://host:port",
	} {
		if _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60s: %v, want %q", text, err, want)
		}
	}
}

func TestMergeChangesWhatIsGivenAndNothingOnError(t *testing.T) {
	r := rank(t, `{"id":4,"model":"m","endpoint":"http://h:1/","events":{"endpoint":"tcp://h:5557"},"max_active":7}`)
	before := *r.Events
	if err := Merge(&r, []byte(`{"draining":true,"events":{"topic":"kv"}}`)); err != nil {
		t.Fatal(err)
	}
	if !r.Draining || r.MaxActive != 7 || r.Events.Endpoint != before.Endpoint || r.Events.Topic != "kv" || r.Endpoint != "http://h:1" {
		t.Errorf("%+v %+v", r, r.Events)
	}
	if err := Merge(&r, []byte(`{"max_active":-1,"draining":false}`)); err == nil || !r.Draining {
		t.Errorf("%+v %v", r, err)
	}
}

func TestFlagSaysTheSameAsJSON(t *testing.T) {
	r, err := ParseFlag("id=2,model=m,endpoint=http://h:1,dp_mode=internal,dp_rank=1,events=tcp://h:5557,replay=tcp://h:5558,topic=kv,adapters=a+b,node=n,node_url=http://h:9477,max_active=3,disk_bytes_per_s=3e9")
	if err != nil {
		t.Fatal(err)
	}
	if r.ID != 2 || r.DPRank != 1 || r.Events.ReplayEndpoint != "tcp://h:5558" || len(r.Adapters) != 2 || r.MaxActive != 3 || r.Speeds.DiskBytes != 3e9 || r.BlockSize != 0 {
		t.Errorf("%+v", r)
	}
	for _, bad := range []string{"", "id", "id=x,model=m,endpoint=http://h", "id=1", "=1"} {
		if _, err := ParseFlag(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

// Whoever wrote a rank finds the mistake without knowing the program.
func TestMistakesInARanksFormAreSaidPlainly(t *testing.T) {
	for text, want := range map[string]string{
		`{"id":0,"modle":"m"}`:                                       `rank: unknown field "modle", did you mean "model"?`,
		`{"id":0,"model":"m","temperature":1}`:                       `rank: unknown field "temperature"`,
		`{"id":0,"model":"m","events":"tcp://x:1"}`:                  "rank: events is a JSON string: want an object with endpoint, replay_endpoint, topic, bind",
		`{"id":0,"model":"m","events":{"endpiont":"tcp://x:1"}}`:     `rank: unknown field "endpiont", did you mean "endpoint"?`,
		`{"id":"a","model":"m"}`:                                     "rank: id is a JSON string: want a whole number",
		`{"id":0,"model":1}`:                                         "rank: model is a JSON number: want a text",
		`{"id":0,"model":"m","adapters":"a"}`:                        "rank: adapters is a JSON string: want a list",
		`{"id":0,"model":"m","draining":1}`:                          "rank: draining is a JSON number: want true or false",
		`{"id":0,"model":"m","speeds":{"prefill_tokens_per_s":"x"}}`: "rank: speeds.prefill_tokens_per_s is a JSON string: want a number",
		`[]`: "rank: want an object with fields, not a JSON array",
		`{"id":0,"model":"m","endpoint":"http://10.0.0.1:8000/v1"}`:         "leave /v1 out",
		`{"id":0,"model":"m","endpoint":"http://10.0.0.1:8000/engine/v1/"}`: "leave /v1 out",
	} {
		if _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "json") {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	if _, err := Parse([]byte(`{"id":0,"model":"m","endpoint":"http://10.0.0.1:8000/engine"}`)); err != nil {
		t.Error(err)
	}
}
