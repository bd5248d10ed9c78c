package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// numberFile is the one place of the version's number.
const numberFile = "internal/version/number.txt"

// checkout is what is built.
type checkout struct {
	root, version string
	// commit and its time (RFC 3339) are empty, and modified false, if the checkout is no Git repository.
	commit, commitTime string
	modified           bool
	// at is the time of everything that is built: SOURCE_DATE_EPOCH, or else the commit's.
	at time.Time
}

// findCheckout describes the checkout that dir lies in.
func findCheckout(ctx context.Context, dir string) (*checkout, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	for {
		number, err := os.ReadFile(filepath.Join(dir, numberFile))
		if err == nil {
			src := &checkout{root: dir, version: strings.TrimSpace(string(number))}
			return src, src.date(ctx, os.Getenv("SOURCE_DATE_EPOCH"))
		}
		if dir == filepath.Dir(dir) {
			return nil, fmt.Errorf("no folder above has %s: run this in a checkout of kvconn", numberFile)
		}
		dir = filepath.Dir(dir)
	}
}

// date finds out which commit this is, and the time that the files get.
func (c *checkout) date(ctx context.Context, epoch string) error {
	seconds := epoch
	out, gitErr := c.output(ctx, nil, "git", "log", "-1", "--format=%H %ct")
	if gitErr == nil {
		commit, committed, _ := strings.Cut(strings.TrimSpace(string(out)), " ")
		status, err := c.output(ctx, nil, "git", "status", "--porcelain")
		if err != nil {
			return err
		}
		s, err := strconv.ParseInt(committed, 10, 64)
		if err != nil {
			return fmt.Errorf("git: the commit's time is %q", committed)
		}
		c.commit, c.commitTime, c.modified = commit, time.Unix(s, 0).UTC().Format(time.RFC3339), len(status) > 0
		if seconds == "" {
			seconds = committed
		}
	}
	if seconds == "" {
		return fmt.Errorf("the commit's time is unknown: set SOURCE_DATE_EPOCH to the time that the files shall have: %w", gitErr)
	}
	s, err := strconv.ParseInt(seconds, 10, 64)
	// A zip archive has no time before 1980, an rpm package none that needs more than 32 bits.
	if err != nil || s < 315_532_800 || s >= 1<<32 {
		return fmt.Errorf("SOURCE_DATE_EPOCH is %q, want seconds since 1970, not before 1980", seconds)
	}
	c.at = time.Unix(s, 0).UTC()
	return nil
}

// output runs a command in the checkout, with env added to the environment, and returns what it prints.
func (c *checkout) output(ctx context.Context, env []string, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = c.root
	cmd.Env = append(os.Environ(), env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, &stderr)
	}
	return out, nil
}

// files is where the unit, the configuration and the packages' scripts are.
func (c *checkout) files(name string) string {
	return filepath.Join(c.root, "integration/release/files", name)
}
