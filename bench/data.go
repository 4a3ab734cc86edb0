package bench

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"

	"keyframe/statebackend"
)

// job is where all states of the bench lie.
var job = statebackend.Job{Prefix: statebackend.DefaultPrefix, Name: "bench"}

// maxParallelism of the bench's job.
const maxParallelism = 128

// keys is a run of keys of one kind, each with the same number of elements.
type keys struct {
	kind  string // hash, list, set, zset
	name  string // of the state
	keys  int
	width int // elements of each key
}

// dataset is a job's state, always the same for one name and scale.
type dataset struct {
	name string
	runs []keys
}

// newDataset gives a dataset by its name. A smaller scale has fewer keys, and
// in D1, whose keys are few, shorter ones.
func newDataset(name string, scale int) (dataset, error) {
	d := dataset{name: name}
	switch name {
	case "D1", "D1x8":
		width := 62_500 / scale
		if name == "D1x8" {
			width *= 8
		}
		d.runs = []keys{{"hash", "flights", 16, width}}
	case "D2":
		d.runs = []keys{{"hash", "flights", 200_000 / scale, 5}}
	case "D3":
		for _, kind := range []string{"hash", "list", "set", "zset"} {
			d.runs = append(d.runs,
				keys{kind, "big-" + kind, 1, 50_000 / scale},
				keys{kind, "mid-" + kind, 200 / scale, 500},
				keys{kind, "tiny-" + kind, 10_000 / scale, 10})
		}
	default:
		return d, fmt.Errorf("dataset %q: want D1, D2, D3 or D1x8", name)
	}
	return d, nil
}

// size counts the state keys and their elements.
func (d dataset) size() (keys, elements int) {
	for _, r := range d.runs {
		keys += r.keys
		elements += r.keys * r.width
	}
	return keys, elements
}

// key names the i-th key of a run, as the layout has it.
func (r keys) key(i int) string {
	scope := statebackend.Scope{Group: "stats", Topic: "flights", Partition: i % maxParallelism, Operator: "airport"}
	switch {
	case r.kind == "zset":
		return job.WindowDueKey(scope, r.name+"-"+strconv.Itoa(i))
	case r.kind == "hash" && r.keys <= maxParallelism: // a value state: one hash for each key group
		return job.StateKey(scope, r.name)
	}
	return job.KeyedKey(scope, r.name, "s:airport-"+strconv.Itoa(i))
}

// field names the i-th element of a key, as a typed key.
func field(b []byte, i int) []byte { return strconv.AppendInt(append(b, "s:flight-"...), int64(i), 10) }

// value makes about 60 bytes of JSON that differ from element to element as
// counts and means do.
func value(b []byte, rnd *rand.Rand) []byte {
	carriers := [...]string{"AA", "AS", "B6", "DL", "EV", "F9", "HA", "MQ", "NK", "OO", "UA", "VX", "WN", "YX"}
	b = append(append(b, `{"carrier":"`...), carriers[rnd.IntN(len(carriers))]...)
	b = strconv.AppendInt(append(b, `","flights":`...), int64(rnd.IntN(10_000)), 10)
	b = strconv.AppendFloat(append(b, `,"mean":`...), float64(rnd.IntN(6e11))/1e10, 'f', 10, 64)
	b = strconv.AppendInt(append(b, `,"max":`...), int64(rnd.IntN(2_000)), 10)
	return append(b, '}')
}

// writeFile writes the commands that build the dataset, one element in each,
// and each key's entries in index and registry, in the form that
// `redis-cli --pipe` takes.
func (d dataset) writeFile(path string) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("commands of %s: %w", d.name, err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w := bufio.NewWriterSize(f, 1<<20)
	d.write(w)
	if err := w.Flush(); err != nil {
		return fmt.Errorf("commands of %s: %w", d.name, err)
	}
	return nil
}

// write leaves errors to the writer's Flush.
func (d dataset) write(w *bufio.Writer) {
	rnd := rand.New(rand.NewPCG(1, 2))
	var b, v []byte
	for _, r := range d.runs {
		for i := range r.keys {
			key := []byte(r.key(i))
			command(w, "SADD", []byte(job.Index()), key)
			command(w, "HSET", []byte(job.Registry()), key, []byte("com.example.Delays|1"))
			for e := range r.width {
				b, v = field(b[:0], e), value(v[:0], rnd)
				switch r.kind {
				case "hash":
					command(w, "HSET", key, b, v)
				case "list":
					command(w, "RPUSH", key, v)
				case "set":
					command(w, "SADD", key, member(v, e))
				case "zset":
					command(w, "ZADD", key, strconv.AppendInt(nil, 1_700_000_000_000+int64(rnd.IntN(1e9)), 10), b)
				}
			}
		}
	}
}

// member makes a value differ from all others of its set.
func member(v []byte, i int) []byte {
	return append(strconv.AppendInt([]byte(`{"id":`), int64(i), 10), append([]byte(","), v[1:]...)...)
}

// command writes one command as RESP. Errors stick to the writer.
func command(w *bufio.Writer, name string, args ...[]byte) {
	fmt.Fprintf(w, "*%d\r\n$%d\r\n%s\r\n", len(args)+1, len(name), name)
	for _, a := range args {
		_, _ = w.WriteString("$" + strconv.Itoa(len(a)) + "\r\n") // sticks to w
		_, _ = w.Write(a)                                         // likewise
		_, _ = io.WriteString(w, "\r\n")                          // likewise
	}
}
