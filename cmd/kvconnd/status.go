package main

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/kvconn/kvconn/config"
	"github.com/kvconn/kvconn/daemon"
)

// statusCmd is `kvconnd status`.
type statusCmd struct {
	HTTP string `name:"http" placeholder:"ADDR" help:"The daemon's HTTP address. Default: that of the daemon that serves --dir, or 127.0.0.1:9477."`
	Dir  string `name:"dir" env:"KVCONN_DIR" placeholder:"DIR" help:"Ask the daemon that serves this store directory, whatever its address."`
	JSON bool   `name:"json" help:"Print the whole status as JSON."`
}

// Run asks the daemon and prints its answer.
func (c *statusCmd) Run(ctx context.Context, std *streams) error {
	addr := c.HTTP
	switch {
	case addr != "":
	case c.Dir == "":
		addr = "127.0.0.1:9477"
	default:
		info, err := daemon.ReadInfo(c.Dir)
		if err != nil {
			return err
		}
		if addr = info.HTTP; addr == "" {
			return fmt.Errorf("the daemon that serves %s has no HTTP interface (http: off)", c.Dir)
		}
	}
	s, err := daemon.FetchStatus(ctx, addr)
	if err != nil {
		return err
	}
	if c.JSON {
		return printJSON(std.out, s)
	}
	return printStatus(std.out, s)
}

// printStatus writes the status for people.
func printStatus(out io.Writer, s *daemon.Status) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	st := &s.Store
	fmt.Fprintf(w, "%s\tpid %d, up %s, epoch %s\n", s.Version, s.PID, seconds(s.UptimeS), s.Epoch)
	fmt.Fprintf(w, "socket\t%s\n", s.Socket)
	fmt.Fprintf(w, "store\t%s: %d records, %s of %s (%s)\n", st.Dir, st.Records, size(st.PhysicalBytes), size(st.MaxBytes), percent(float64(st.PhysicalBytes), float64(st.MaxBytes)))
	fmt.Fprintf(w, "lookups\t%d of %d blocks found (%s)\n", st.HitBlocks, st.LookupBlocks, percent(float64(st.HitBlocks), float64(st.LookupBlocks)))
	fmt.Fprintf(w, "disk\tread %s, written %s, evicted %d, corrupt %d, errors %d\n",
		size(int64(st.ReadBytes)), size(int64(st.WriteBytes)), st.Evicted, st.Corrupt, st.ReadErrors+st.WriteErrors)
	for _, warning := range st.Warnings {
		fmt.Fprintf(w, "warning\t%s\n", warning)
	}
	if len(s.Engines) > 0 {
		fmt.Fprintf(w, "\nENGINE\tPID\tMODEL\tREQUESTS\tQUERIED TOKENS\tOFFERED\tFAILED LOADS\n")
	}
	for i := range s.Engines {
		e := &s.Engines[i]
		r := &e.Requests
		fmt.Fprintf(w, "%s\t%d\t%s\t%d\t%d\t%s\t%d\n", e.Engine, e.PID, e.Model, r.Requests, r.QueriedTokens,
			percent(float64(r.OfferedTokens), float64(r.QueriedTokens)), r.FailedLoads)
	}
	if len(s.Ranks) > 0 {
		fmt.Fprintf(w, "\nRANK\tPID\tSHARD\tBLOCK\tLOADED\tFAILED\tSAVED\tDROPPED\tLOADING\n")
	}
	for i := range s.Ranks {
		r := &s.Ranks[i]
		t := &r.Transfers
		fmt.Fprintf(w, "%s\t%d\t%d\t%s\t%s\t%d blocks\t%s\t%d blocks\t%d\n", r.Engine, r.PID, r.Rank, size(int64(r.BlockBytes)),
			size(int64(t.LoadedBytes)), t.FailedBlocks, size(int64(t.SavedBytes)), t.DroppedBlocks, t.LoadsInFlight)
	}
	return w.Flush()
}

func size(n int64) string {
	units := [...]string{"B", "KiB", "MiB", "GiB", "TiB"}
	v, i := float64(n), 0
	for v >= 1024 && i < len(units)-1 {
		v, i = v/1024, i+1
	}
	if i == 0 {
		return config.Bytes(n).String()
	}
	return fmt.Sprintf("%.1f %s", v, units[i])
}

func percent(part, whole float64) string {
	if whole == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f%%", 100*part/whole)
}

func seconds(s float64) time.Duration {
	return time.Duration(s * float64(time.Second)).Round(time.Second)
}
