package kernel_test

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"unsafe"

	"pgregory.net/rapid"

	"github.com/kvconn/kvconn/gpu/kernel"
	"github.com/kvconn/kvconn/internal/testkit/property"
)

// code is the module's text without comments and without spaces at the ends of lines.
func code(t *testing.T) string {
	t.Helper()
	text := kernel.PTX()
	for _, c := range text {
		if c > '~' || c == 0 {
			t.Fatalf("the text has the character %q", c)
		}
	}
	return regexp.MustCompile(`[ \t]*(//[^\n]*)?\n`).ReplaceAllString(text, "\n")
}

func TestModuleIsForAllDevicesSinceTuring(t *testing.T) {
	for _, line := range []string{".version 7.0", ".target sm_75", ".address_size 64"} {
		if !strings.Contains(code(t), "\n"+line+"\n") {
			t.Errorf("no line %q", line)
		}
	}
}

// bodies returns each entry's text from its parameters on, by name.
func bodies(t *testing.T) map[string]string {
	t.Helper()
	found := make(map[string]string)
	for _, m := range regexp.MustCompile(`(?s)\.visible \.entry (\w+)(.*?\n})`).FindAllStringSubmatch(code(t), -1) {
		found[m[1]] = m[2]
	}
	return found
}

func TestEntriesHaveTheParametersThatTheConstantsName(t *testing.T) {
	want := make([]string, kernel.Params)
	want[kernel.ParamRuns] = "u64 runs"
	want[kernel.ParamStaging] = "u64 staging"
	want[kernel.ParamCount] = "u32 count"
	want[kernel.ParamLanesLog2] = "u32 lanes_log2"
	entries := bodies(t)
	for _, name := range []string{kernel.GatherName, kernel.ScatterName} {
		var got []string
		for _, m := range regexp.MustCompile(`\.param \.(u\d+ \w+)`).FindAllStringSubmatch(entries[name], -1) {
			got = append(got, m[1])
		}
		if strings.Join(got, ", ") != strings.Join(want, ", ") {
			t.Errorf("%s has the parameters %q, want %q", name, got, want)
		}
		if block := fmt.Sprintf("\n.reqntid %d, 1, 1\n", kernel.BlockThreads); !strings.Contains(entries[name], block) {
			t.Errorf("%s does not demand %d threads", name, kernel.BlockThreads)
		}
		if least := fmt.Sprintf("\tmin.u32 %%log2, %%log2, %d;\n", kernel.MaxLanesLog2); !strings.Contains(entries[name], least) {
			t.Errorf("%s does not limit lanes to %d", name, kernel.MaxLanesLog2)
		}
	}
	if len(entries) != 2 {
		t.Errorf("%d entries, want 2", len(entries))
	}
}

// A repair of one kernel is a repair of both.
func TestScatterIsGatherTheOtherWay(t *testing.T) {
	entries := bodies(t)
	gather, scatter := entries[kernel.GatherName], entries[kernel.ScatterName]
	turned := strings.NewReplacer("%src, %device;", "%src, %host;", "%dst, %host;", "%dst, %device;").Replace(gather)
	if gather == scatter || turned != scatter {
		t.Error("the bodies differ in more than source and target")
	}
}

func TestDescriptorIsARunInMemory(t *testing.T) {
	r := kernel.Run{Device: 0x0102030405060708, OffsetBytes: 0x090a0b0c, LengthBytes: 0x0d0e0f10}
	if unsafe.Sizeof(r) != kernel.DescriptorBytes {
		t.Errorf("a Run has %d bytes, a descriptor %d", unsafe.Sizeof(r), kernel.DescriptorBytes)
	}
	b := bytes.Repeat([]byte{0xee}, kernel.DescriptorBytes+1)
	r.Put(b)
	want := []byte{8, 7, 6, 5, 4, 3, 2, 1, 0xc, 0xb, 0xa, 9, 0x10, 0xf, 0xe, 0xd, 0xee}
	if !bytes.Equal(b, want) {
		t.Errorf("descriptor % x, want % x", b, want)
	}
}

func TestLanesFollowTheLengthOfRuns(t *testing.T) {
	for _, c := range []struct {
		runBytes int
		want     uint32
	}{{-1, 2}, {0, 2}, {64, 2}, {256, 2}, {511, 2}, {512, 3}, {1 << 10, 4}, {2 << 10, 5}, {1 << 20, 5}} {
		if got := kernel.LanesLog2(c.runBytes); got != c.want {
			t.Errorf("LanesLog2(%d) = %d, want %d", c.runBytes, got, c.want)
		}
	}
}

func TestGridsCoverTheRuns(t *testing.T) {
	for _, c := range []struct {
		runs  int
		lanes uint32
		most  int
		want  int
	}{{0, 2, 100, 1}, {1, 2, 100, 1}, {64, 2, 100, 1}, {65, 2, 100, 2}, {1 << 20, 2, 100, 100}, {3, 8, 100, 3}, {3, 99, 100, 3}, {5, 2, 0, 1}} {
		if got := kernel.Blocks(c.runs, c.lanes, c.most); got != c.want {
			t.Errorf("Blocks(%d, %d, %d) = %d, want %d", c.runs, c.lanes, c.most, got, c.want)
		}
	}
}

// runs draws runs that follow each other in staging, with gaps, in devices' memory of the size.
func runs(t *rapid.T, m kernel.Memory) (runs []kernel.Run, stagingBytes int) {
	for range rapid.IntRange(0, 8).Draw(t, "count") {
		stagingBytes += rapid.IntRange(0, 9).Draw(t, "gap")
		length := rapid.IntRange(0, len(m.Bytes)).Draw(t, "length")
		at := rapid.IntRange(0, len(m.Bytes)-length).Draw(t, "at")
		runs = append(runs, kernel.Run{Device: m.Address + uint64(at), OffsetBytes: uint32(stagingBytes), LengthBytes: uint32(length)})
		stagingBytes += length
	}
	return runs, stagingBytes
}

// What is gathered comes back where it was, and nothing else changes on either way.
func TestReferenceScattersWhatItGathered(t *testing.T) {
	property.Check(t, func(t *rapid.T) {
		m := kernel.Memory{Address: rapid.Uint64().Draw(t, "address") &^ (1 << 63), Bytes: rapid.SliceOfN(rapid.Byte(), 1, 64).Draw(t, "memory")}
		runs, stagingBytes := runs(t, m)
		staging := bytes.Repeat([]byte{0xee}, stagingBytes+3)
		if err := kernel.Gather(staging, m, runs); err != nil {
			t.Fatal(err)
		}
		end, covered := uint32(0), make([]bool, len(m.Bytes))
		for _, r := range runs {
			at := r.Device - m.Address
			if gap := staging[end:r.OffsetBytes]; bytes.Trim(gap, "\xee") != nil {
				t.Fatalf("bytes between runs were written: % x", gap)
			}
			end = r.OffsetBytes + r.LengthBytes
			if !bytes.Equal(staging[r.OffsetBytes:end], m.Bytes[at:at+uint64(r.LengthBytes)]) {
				t.Fatalf("run %+v was not gathered", r)
			}
			for i := range r.LengthBytes {
				covered[at+uint64(i)] = true
			}
		}
		back := kernel.Memory{Address: m.Address, Bytes: bytes.Repeat([]byte{0xdd}, len(m.Bytes))}
		if err := kernel.Scatter(back, staging, runs); err != nil {
			t.Fatal(err)
		}
		for i, b := range back.Bytes {
			if want := m.Bytes[i]; covered[i] && b != want || !covered[i] && b != 0xdd {
				t.Fatalf("byte %d is %#x, covered %v, was %#x", i, b, covered[i], want)
			}
		}
	})
}

func TestReferenceRefusesRunsOutsideOfMemory(t *testing.T) {
	m := kernel.Memory{Address: 1000, Bytes: make([]byte, 100)}
	staging := make([]byte, 50)
	for _, r := range []kernel.Run{
		{Device: 999, LengthBytes: 1}, {Device: 1100, LengthBytes: 1}, {Device: 1051, LengthBytes: 50}, {Device: 1<<64 - 1, LengthBytes: 2},
		{Device: 0}, {Device: 1101}, {Device: 1000, OffsetBytes: 50, LengthBytes: 1}, {Device: 1000, OffsetBytes: 51},
		{Device: 1000, OffsetBytes: 1<<32 - 1, LengthBytes: 1<<32 - 1}, {Device: 1000, LengthBytes: 51},
	} {
		runs := []kernel.Run{{Device: 1000, LengthBytes: 1}, r}
		m.Bytes[0], staging[0] = 1, 2
		if err := kernel.Gather(staging, m, runs); !errors.Is(err, kernel.ErrBounds) {
			t.Errorf("gather of %+v: %v", r, err)
		}
		if err := kernel.Scatter(m, staging, runs); !errors.Is(err, kernel.ErrBounds) {
			t.Errorf("scatter of %+v: %v", r, err)
		}
		if m.Bytes[0] != 1 || staging[0] != 2 {
			t.Errorf("a call that refused %+v copied", r)
		}
	}
}
