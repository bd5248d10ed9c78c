package connbench

import (
	"os"
	"slices"
	"testing"
)

// helperEnv makes the test binary the calling process.
const helperEnv = "KVCONN_TEST_CONNBENCH"

func TestRoundTripIsMeasuredBetweenTwoProcesses(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(helperEnv, "1")
	calls := 200
	if os.Getenv("KVCONN_TEST_LONG") != "" {
		calls = 20_000
	}
	r, err := RoundTrip(t.Context(), Options{Command: []string{exe, "-test.run=^TestHelperCall$", "--"}, Calls: calls})
	if err != nil {
		t.Fatal(err)
	}
	if r.Calls != calls || r.Tokens != 16 || r.RTTLowestS <= 0 || r.RTTP50S < r.RTTLowestS || r.RTTP99S < r.RTTP50S || r.RawP50S <= 0 || r.Ratio <= 0 {
		t.Errorf("%+v", r)
	}
	t.Logf("%+v", r)
}

func TestHelperCall(t *testing.T) {
	if os.Getenv(helperEnv) == "" {
		t.Skip("part of another test")
	}
	args := os.Args[slices.Index(os.Args, "--")+1:]
	if err := Call(t.Context(), args, os.Stdout); err != nil {
		t.Fatal(err)
	}
}

func TestCallingProcessThatFailsIsAnError(t *testing.T) {
	if _, err := RoundTrip(t.Context(), Options{Command: []string{"false"}}); err == nil {
		t.Error("a result without a calling process")
	}
	if _, err := RoundTrip(t.Context(), Options{}); err == nil {
		t.Error("a result without a command")
	}
}
