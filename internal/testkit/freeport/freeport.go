// Package freeport finds addresses for servers under test whose address is known before they start.
package freeport

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"testing"
)

const (
	lowest = 15000
	tries  = 1000
	// assigned says which ports the system gives to connections and to whoever asks for any port (ip(7)).
	assigned = "/proc/sys/net/ipv4/ip_local_port_range"
)

// Address is a TCP address of this machine that nobody listens on. Its port lies below those that the system gives
// to connections and to whoever asks for any port: one of those could be somebody else's by the time that a server
// starts on it, or starts again.
func Address(t testing.TB) string {
	t.Helper()
	text, err := os.ReadFile(assigned)
	if err != nil {
		t.Fatal(err)
	}
	var end int
	if _, err := fmt.Sscan(string(text), &end); err != nil {
		t.Fatalf("%s: %q: %v", assigned, text, err)
	}
	if end <= lowest {
		t.Fatalf("%s: the system assigns ports from %d", assigned, end)
	}
	for range tries {
		address := fmt.Sprintf("127.0.0.1:%d", lowest+rand.IntN(end-lowest))
		if l, err := net.Listen("tcp", address); err == nil {
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			return address
		}
	}
	t.Fatalf("no port of %d to %d is free: %v", lowest, end, err)
	return ""
}
