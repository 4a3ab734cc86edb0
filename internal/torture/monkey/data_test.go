package monkey

import (
	"compress/gzip"
	"encoding/json"
	"fmt"
	"os"
	"unicode/utf16"
)

// dataFile holds 20,000 flights of 2001 (see examples/flights), in the order of
// their departure.
const dataFile = "../../../examples/flights/flights-20k.json.gz"

// flight is one record of the file.
type flight struct {
	Date        string `json:"date"` // "2001/01/01 00:47"
	Delay       int    `json:"delay"`
	Origin      string `json:"origin"`
	Destination string `json:"destination"`
}

// day is the date without the time.
func (f flight) day() string { return f.Date[:10] }

// parts is how many partitions the source has, each read by one worker.
const parts = 3

// partition is a partition of the source: the file's records by turns, for
// ever: after the last comes the first again.
type partition struct {
	number  int
	records []flight
	// of gives, for each origin, the records' places in the order of reading.
	of map[string][]int
}

// at is the record at a position.
func (p *partition) at(pos int) flight { return p.records[pos%len(p.records)] }

// loadPartitions reads the file.
func loadPartitions() ([]*partition, error) {
	file, err := os.Open(dataFile)
	if err != nil {
		return nil, fmt.Errorf("flights: %w", err)
	}
	defer func() { _ = file.Close() }() // it was only read
	r, err := gzip.NewReader(file)
	if err != nil {
		return nil, fmt.Errorf("flights %s: %w", dataFile, err)
	}
	var all []flight
	if err := json.NewDecoder(r).Decode(&all); err != nil {
		return nil, fmt.Errorf("flights %s: %w", dataFile, err)
	}
	if len(all) != 20000 {
		return nil, fmt.Errorf("flights %s: %d records, want 20000", dataFile, len(all))
	}
	out := make([]*partition, parts)
	for q := range out {
		out[q] = &partition{number: q, of: map[string][]int{}}
	}
	for i, f := range all {
		p := out[i%parts]
		p.of[f.Origin] = append(p.of[f.Origin], len(p.records))
		p.records = append(p.records, f)
	}
	return out, nil
}

// groups is the job's max parallelism.
const groups = 16

// group is the key group of a key: Java's hashCode of the string, floorMod groups.
func group(key string) int {
	h := int32(0)
	for _, unit := range utf16.Encode([]rune(key)) {
		h = 31*h + int32(unit)
	}
	return int(((h % groups) + groups) % groups)
}
