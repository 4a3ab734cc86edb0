package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"keyframe/coordinator"
	"keyframe/coordinator/fault"
	"keyframe/snapshot/bolt"
)

// bucketSalvages is the journal's: name of a damaged file that is kept aside →
// JSON of coordinator.Salvage. A record is there as long as the file.
const bucketSalvages = "salvages"

// salvageOf is what a report says, job by job.
func salvageOf(report bolt.SalvageReport, aside string, at time.Time) coordinator.Salvage {
	s := coordinator.Salvage{File: aside, At: at, Now: true, Nothing: report.Nothing, Jobs: map[string]coordinator.SalvagedOf{}}
	for _, c := range report.Checkpoints {
		of := s.Jobs[c.Job]
		switch {
		case !c.OK:
			of.Lost = append(of.Lost, c.ID)
		case c.Note != "":
			of.Kept, of.Unsure = append(of.Kept, c.ID), append(of.Unsure, c.ID)
		default:
			of.Kept = append(of.Kept, c.ID)
		}
		s.Jobs[c.Job] = of
	}
	return s
}

// salvages are the damaged files that are still kept aside, with what is known
// of each: of this start (its File is empty when it salvaged nothing) and of
// those before. What is known of a file that somebody has moved away is
// forgotten. Of one whose salvage was killed only the file is known.
func salvages(ctx context.Context, db *bolt.DB, now coordinator.Salvage) (all []coordinator.Salvage, err error) {
	files, err := bolt.Asides(db.Path())
	if err != nil {
		return nil, fault.Wrap(err, fault.Store, "", "look for damaged stores")
	}
	known, err := knownSalvages(ctx, db.Journal(), files)
	if err != nil {
		return nil, fault.Wrap(err, fault.Store, "", "read what was salvaged")
	}
	for _, file := range files {
		s, ok := known[file]
		switch {
		case file == now.File:
			s = now
			value, err := json.Marshal(s)
			if err == nil {
				err = db.Journal().Put(ctx, bucketSalvages, file, value)
			}
			if err != nil {
				return nil, fault.Wrap(err, fault.Store, "", "remember what was salvaged")
			}
		case !ok:
			s.File = file
		}
		all = append(all, s)
	}
	return all, nil
}

// knownSalvages reads the journal, and forgets files that are gone.
func knownSalvages(ctx context.Context, journal *bolt.Journal, files []string) (map[string]coordinator.Salvage, error) {
	known := map[string]coordinator.Salvage{}
	err := journal.Each(ctx, bucketSalvages, func(file string, value []byte) error {
		var s coordinator.Salvage
		if !slices.Contains(files, file) {
			return journal.Delete(ctx, bucketSalvages, file)
		}
		if err := json.Unmarshal(value, &s); err != nil {
			return fmt.Errorf("record of %s: %w", file, err)
		}
		known[file] = s
		return nil
	})
	return known, err
}
