package redis

import (
	"context"
	"sort"
	"strings"

	"keyframe/statebackend"
)

// Found is a job that a server seems to hold. Where its root is cut into
// prefix and name is a guess: both may hold colons.
type Found struct {
	Prefix  string `json:"prefix"`
	Name    string `json:"name"`
	Indexed uint64 `json:"stateKeys"` // names in its index
	Record  bool   `json:"record"`    // a coordinator keeps or kept it
}

// indexSuffix is how the key of every job's index ends.
const indexSuffix = ":stateKeys"

// Discover looks through a database for the indexes of jobs and writes
// nothing. It reads every key's name once, in small steps.
func (b *Backend) Discover(ctx context.Context) ([]Found, error) {
	found := map[string]Found{}
	for cursor := uint64(0); ; {
		keys, next, err := b.client.ScanType(ctx, cursor, "*"+indexSuffix, 1000, "set").Result()
		if err != nil {
			return nil, b.mapError(err, "look for jobs")
		}
		for _, key := range keys {
			f, err := b.look(ctx, key)
			if err != nil {
				return nil, err
			}
			found[key] = f
		}
		if cursor = next; cursor == 0 {
			break
		}
	}
	all := make([]Found, 0, len(found))
	for _, f := range found {
		all = append(all, f)
	}
	sort.Slice(all, func(i, j int) bool {
		return all[i].Prefix+"\x00"+all[i].Name < all[j].Prefix+"\x00"+all[j].Name
	})
	return all, nil
}

func (b *Backend) look(ctx context.Context, index string) (Found, error) {
	root := strings.TrimSuffix(index, indexSuffix)
	f := Found{Prefix: "", Name: root}
	if name, ok := strings.CutPrefix(root, statebackend.DefaultPrefix+":"); ok {
		f.Prefix, f.Name = statebackend.DefaultPrefix, name
	} else if i := strings.LastIndexByte(root, ':'); i >= 0 {
		f.Prefix, f.Name = root[:i], root[i+1:]
	}
	n, err := b.client.SCard(ctx, index).Result()
	if err != nil {
		return f, b.mapError(err, "count the index "+index)
	}
	f.Indexed = uint64(n)
	there, err := b.client.Exists(ctx, statebackend.Job{Prefix: f.Prefix, Name: f.Name}.Record()).Result()
	if err != nil {
		return f, b.mapError(err, "look for the record of "+root)
	}
	f.Record = there > 0
	return f, nil
}
