package hostmemory

import (
	"maps"
	"math"
	"os"
	"path/filepath"
	"testing"
)

// A daemon that takes a part of the machine's memory in a container with less is killed.
func TestHostTierFitsTheContainersMemory(t *testing.T) {
	for name, tc := range map[string]struct {
		cgroup string
		files  map[string]string
		want   int64
	}{
		"none":           {"", nil, math.MaxInt64},
		"version 2":      {"0::/a/b\n", map[string]string{"a/b/memory.max": "max\n", "a/memory.max": "4096\n", "memory.max": "8192\n"}, 4096},
		"own root":       {"0::/\n", map[string]string{"memory.max": "4096\n"}, 4096},
		"path elsewhere": {"4:memory:/docker/1\n0::/\n", map[string]string{"memory/memory.limit_in_bytes": "4096\n"}, 4096},
		"version 1":      {"5:cpu:/x\n4:memory:/a\n", map[string]string{"memory/a/memory.limit_in_bytes": "4096", "x/memory.max": "1"}, 4096},
		"nonsense":       {"x\n0::../../..\n", map[string]string{"memory.max": "-1"}, math.MaxInt64},
	} {
		root := t.TempDir()
		put := func(path, text string) {
			path = filepath.Join(root, path)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		put("proc/self/cgroup", tc.cgroup)
		for path, text := range tc.files {
			put(filepath.Join("sys/fs/cgroup", path), text)
		}
		if got := cgroupLimit(root); got != tc.want {
			t.Errorf("%s: %d, want %d", name, got, tc.want)
		}
	}
	const mib, gib = 1 << 20, 1 << 30
	for memory, want := range map[int64]int64{
		64 * mib: 64 * mib, 256 * mib: 128 * mib, gib: 512 * mib, 4 * gib: 512 * mib, 32 * gib: 4 * gib, 1024 * gib: 16 * gib,
	} {
		if got := hostBytesOf(memory); got != want {
			t.Errorf("of %d bytes: %d, want %d", memory, got, want)
		}
	}
}

// Memory that is taken before its use must not get the process killed.
func TestFreeMemoryIsThatOfMachineAndCgroup(t *testing.T) {
	const mib = 1 << 20
	for name, tc := range map[string]struct {
		cgroup string
		files  map[string]string
		want   int64
	}{
		"unknown":      {"", nil, math.MaxInt64},
		"machine":      {"", map[string]string{"proc/meminfo": "MemTotal: 9 kB\nMemAvailable:    2048 kB\n"}, 2 * mib},
		"no limit":     {"0::/a\n", map[string]string{"proc/meminfo": "MemAvailable: 4096 kB\n", "sys/fs/cgroup/a/memory.max": "max\n", "sys/fs/cgroup/a/memory.current": "9\n"}, 4 * mib},
		"cgroup above": {"0::/a/b\n", map[string]string{"proc/meminfo": "MemAvailable: 4096 kB\n", "sys/fs/cgroup/a/memory.max": "3000\n", "sys/fs/cgroup/a/memory.current": "2000\n"}, 1000},
		"cache":        {"0::/\n", map[string]string{"sys/fs/cgroup/memory.max": "3000\n", "sys/fs/cgroup/memory.current": "2000\n", "sys/fs/cgroup/memory.stat": "anon 1\ninactive_file 500\n"}, 1500},
		"soft limit":   {"0::/\n", map[string]string{"sys/fs/cgroup/memory.max": "9000\n", "sys/fs/cgroup/memory.high": "2500", "sys/fs/cgroup/memory.current": "2000\n"}, 500},
		"over":         {"0::/\n", map[string]string{"sys/fs/cgroup/memory.max": "1000\n", "sys/fs/cgroup/memory.current": "2000\n"}, 0},
		"version 1":    {"4:memory:/a\n", map[string]string{"sys/fs/cgroup/memory/a/memory.limit_in_bytes": "4096", "sys/fs/cgroup/memory/a/memory.usage_in_bytes": "1096", "sys/fs/cgroup/memory/a/memory.stat": "total_inactive_file 96\n"}, 3096},
	} {
		root := t.TempDir()
		tc.files = maps.Clone(tc.files)
		if tc.files == nil {
			tc.files = make(map[string]string)
		}
		tc.files["proc/self/cgroup"] = tc.cgroup
		for path, text := range tc.files {
			path = filepath.Join(root, path)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got := freeBytes(root); got != tc.want {
			t.Errorf("%s: %d, want %d", name, got, tc.want)
		}
	}
}
