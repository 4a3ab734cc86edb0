package bench

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

// Report is the outcome of a run.
type Report struct {
	Machine Machine  `json:"machine"`
	Subject *Subject `json:"subject,omitempty"` // of RunOwn
	Scale   int      `json:"scale,omitempty"`   // of Run: sizes are 1/scale of the full ones
	Pairs   int      `json:"pairs"`
	Figures []Figure `json:"figures"`
}

// Machine describes where the run was, without any name of a host.
type Machine struct {
	OS         string `json:"os"`
	Kernel     string `json:"kernel"`
	Cores      int    `json:"cores"`
	MemoryMiB  uint64 `json:"memoryMiB"`
	Go         string `json:"go"`
	Redis      string `json:"redis"`
	LoadBefore string `json:"loadBefore"` // of 1, 5 and 15 minutes
	LoadAfter  string `json:"loadAfter"`
}

// add takes a figure of one of groups.
func (r *Report) add(group string, f Figure) {
	f.Group = group
	r.Figures = append(r.Figures, f)
}

// sort puts figures that belong together one below the other: they come
// dataset by dataset.
func (r *Report) sort() {
	slices.SortStableFunc(r.Figures, func(a, b Figure) int {
		return cmp.Or(slices.Index(Groups, a.Group)-slices.Index(Groups, b.Group), cmp.Compare(a.Name, b.Name))
	})
}

// describe reads what the machine is, as far as it tells: the rest is Linux's.
func describe() (m Machine, err error) {
	m = Machine{OS: runtime.GOOS + "/" + runtime.GOARCH, Cores: runtime.NumCPU(), Go: runtime.Version()}
	if runtime.GOOS != "linux" {
		return m, nil
	}
	kernel, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return m, fmt.Errorf("kernel's version: %w", err)
	}
	m.Kernel = strings.TrimSpace(string(kernel))
	kib, err := procField("/proc/meminfo", "MemTotal")
	if err != nil {
		return m, err
	}
	m.MemoryMiB = kib >> 10
	m.LoadBefore, err = loadAverage()
	return m, err
}

// serverVersion is that of the redis-server that is installed.
func serverVersion(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "redis-server", "--version").Output()
	if err != nil {
		return "", fmt.Errorf("redis-server is not installed (a server of your own can be measured with --redis): %w", err)
	}
	_, after, _ := strings.Cut(string(out), "v=")
	version, _, _ := strings.Cut(after, " ")
	return version, nil
}

func loadAverage() (string, error) {
	if runtime.GOOS != "linux" {
		return "", nil
	}
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "", fmt.Errorf("load of the machine: %w", err)
	}
	return strings.Join(strings.Fields(string(b))[:3], " "), nil
}

// procField reads a field in KiB of a file such as /proc/PID/status.
func procField(path, field string) (uint64, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", field, err)
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, field+":"); ok {
			return strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
		}
	}
	return 0, fmt.Errorf("%s has no field %s", path, field)
}

func (r *Report) table() table.Writer {
	t := table.NewWriter()
	t.Style().Format.Header = text.FormatDefault
	t.AppendHeader(table.Row{"figure", "data", "baseline", "ours", "ratio", "must", "goal", "met", "spread", "note"})
	for _, f := range r.Figures {
		note := f.Note
		if f.Against != "" {
			note = strings.TrimSuffix("baseline: "+f.Against+"; "+note, "; ")
		}
		t.AppendRow(table.Row{f.Name, f.Data, amount(f.Base, f.Unit), amount(f.Ours, f.Unit), number(f.Ratio),
			limit(f.Must), limit(f.Goal), string(f.Verdict), spread(f), note})
	}
	return t
}

// Render writes the table for a person.
func (r *Report) Render(w io.Writer) {
	fmt.Fprint(w, r.heading(), "\n")
	t := r.table()
	t.SetOutputMirror(w)
	t.Render()
}

// Markdown is the table under a title.
func (r *Report) Markdown(title string) []byte {
	return fmt.Appendf(nil, "# %s\n\n%s\n%s\n", title, r.heading(), r.table().RenderMarkdown())
}

// JSON is the report as one indented document.
func (r *Report) JSON() ([]byte, error) {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("figures as JSON: %w", err)
	}
	return append(b, '\n'), nil
}

// heading says how to read the table, and where it comes from.
func (r *Report) heading() string {
	m := r.Machine
	parts := []string{fmt.Sprintf("%d cores", m.Cores)}
	if m.Kernel != "" {
		parts = append(parts, fmt.Sprintf("%d MiB", m.MemoryMiB))
	}
	parts = append(parts, m.OS)
	if m.Kernel != "" {
		parts = append(parts, "kernel "+m.Kernel)
	}
	parts = append(parts, m.Go, "Redis "+m.Redis)
	line := strings.Join(parts, ", ")
	if m.LoadAfter != "" {
		line += fmt.Sprintf("; load %s before, %s after", m.LoadBefore, m.LoadAfter)
	}
	const how = "Medians of %d interleaved pairs; ratio and spread (lowest to highest) are of ours / baseline, of ours where there is no baseline.\n"
	if r.Subject != nil {
		return fmt.Sprintf("%s.\n"+how+"%s", line, r.Pairs, r.Subject)
	}
	size := "full size"
	if r.Scale != 1 {
		size = fmt.Sprintf("1/%d of the full size (for a smoke run: the goals are for the full size)", r.Scale)
	}
	return fmt.Sprintf("%s; %s.\n"+how+`D1: 16 hashes x 62,500 fields. D2: 200,000 hashes x 5 fields. D3: hashes, lists, sets and zsets, 1M elements. Values: 60 bytes of JSON.
`, line, size, r.Pairs)
}

func number(v *float64) string {
	if v == nil {
		return ""
	}
	switch {
	case *v >= 100:
		return fmt.Sprintf("%.0f", *v)
	case *v >= 10:
		return fmt.Sprintf("%.1f", *v)
	case *v > 0 && *v < 0.1:
		return fmt.Sprintf("%.3f", *v)
	}
	return fmt.Sprintf("%.2f", *v)
}

func amount(v *float64, unit string) string {
	return strings.TrimSpace(number(v) + " " + unitOf(v, unit))
}

func unitOf(v *float64, unit string) string {
	if v == nil {
		return ""
	}
	return unit
}

func limit(v float64) string {
	if v == 0 {
		return ""
	}
	return strconv.FormatFloat(v, 'g', -1, 64)
}

func spread(f Figure) string {
	if f.Low == nil || f.Samples < 2 {
		return ""
	}
	return number(f.Low) + " to " + number(f.High)
}
