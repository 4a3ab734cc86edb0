// Package flights is a streaming job on real data: 20,000 flights within the
// United States from January to March 2001, in the order of their departure,
// as the US Bureau of Transportation Statistics published them (a work of the
// United States government, free of copyright there; the file has been passed
// around as flights-20k.json). The file is embedded, compressed with gzip.
//
// The job keeps, for each origin airport, all four kinds of keyed state: a
// value (count and mean delay), a map (flights per destination), a list (the
// last ten delays) and a set (destinations seen). Beside these it keeps
// operator state in all three modes: a list (positions in the source's
// partitions), a union (how far each partition is known to have come) and a
// broadcast (the delay from which on a flight is late). [Run] runs it, [Check]
// proves what it stored by counting the file again.
package flights

import (
	"bytes"
	"compress/gzip"
	_ "embed" // the data
	"encoding/json"
	"fmt"
	"io"
	"sync"
)

//go:embed flights-20k.json.gz
var compressed []byte

// Record is one flight.
type Record struct {
	Date        string `json:"date"`        // local time of departure, "2001/01/01 00:47"
	Delay       int    `json:"delay"`       // of the arrival, in minutes; negative when early
	Distance    int    `json:"distance"`    // in miles
	Origin      string `json:"origin"`      // airport, by its three letters
	Destination string `json:"destination"` // airport
}

var load = sync.OnceValues(func() ([]Record, error) {
	r, err := gzip.NewReader(bytes.NewReader(compressed))
	if err != nil {
		return nil, fmt.Errorf("embedded flights: %w", err)
	}
	text, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("embedded flights: %w", err)
	}
	var all []Record
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, fmt.Errorf("embedded flights: %w", err)
	}
	return all, nil
})

// Records gives all flights in the order of the file. They are shared: don't
// change them.
func Records() ([]Record, error) { return load() }

// source deals the records onto partitions: record i is in partition
// i mod partitions, at offset i div partitions. It reads from any offset.
type source struct {
	records    []Record
	partitions int
}

// size is how many records a partition has.
func (s source) size(partition int) int {
	return (len(s.records) - partition + s.partitions - 1) / s.partitions
}

// at gives the record at an offset and its index in the file; ok is false at
// the partition's end.
func (s source) at(partition, offset int) (r Record, index int, ok bool) {
	index = offset*s.partitions + partition
	if index >= len(s.records) {
		return Record{}, 0, false
	}
	return s.records[index], index, true
}
