package demo

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// Print writes the report for people.
func (r *Report) Print(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 8, 3, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "conversation\tprompt tokens\tfrom gpu\tfrom disk\tfirst token without\twith cache\tsooner\tidentical\t")
	for i := range r.Rows {
		row := &r.Rows[i]
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%.3f s\t%.3f s\t%.1fx\t%s\t\n", row.Name, row.PromptTokens, row.GPUTokens, row.DiskTokens,
			row.TTFTColdS, row.TTFTCachedS, row.TTFTColdS/max(row.TTFTCachedS, 1e-9), yesNo(row.Identical))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	c := &r.Corruption
	_, err := fmt.Fprintf(out, "\nA bit flipped on disk: detected %s, %d tokens recomputed, identical %s.\n",
		yesNo(c.Detected), c.RecomputedTokens, yesNo(c.Identical))
	if err == nil && r.Store != "" {
		_, err = fmt.Fprintf(out, "The store is in %s.\n", r.Store)
	}
	return err
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "NO"
}
