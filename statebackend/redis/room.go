package redis

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"keyframe/statebackend"
)

// What the server needs in memory beside the bytes themselves, measured with
// version 7.0 and jemalloc. Each staged key also stands in the staged index
// and in the mapping.
const (
	roomBuffers    = 8 << 20      // of our connections
	roomPayload    = codedWritten // the largest payload, while it is loaded
	roomPerKey     = 240
	roomPerElement = 112 // a zset's; a large hash takes 64, a list 4
)

// roomNeeded estimates the memory of a second copy, on the safe side: names
// count three times among the bytes, and allocations are rounded up.
func roomNeeded(keys, elements, bytes uint64) uint64 {
	return roomBuffers + min(bytes, roomPayload) + bytes + bytes/4 + keys*roomPerKey + elements*roomPerElement
}

// Room compares what a second copy needs with what the server has free:
// below its maxmemory, or without one below the memory of its machine.
func (b *Backend) Room(ctx context.Context, keys, elements, bytes uint64) error {
	info, err := b.info(ctx, "memory")
	if err != nil {
		return err
	}
	used, err := infoNumber(info, "used_memory")
	if err != nil {
		return b.mapError(err, "check for room")
	}
	// Absent in old versions or where the provider hides it: then 0.
	limit, limitErr := infoNumber(info, "maxmemory")
	spare, _ := infoNumber(info, "mem_not_counted_for_evict")
	total, _ := infoNumber(info, "total_system_memory")
	if limitErr != nil {
		limit = 0
	}
	what, remedy := "maxmemory", "raise maxmemory or free memory"
	if limit == 0 {
		limit, spare = total, 0
		what, remedy = "the memory of its machine", "give the machine more memory or free some"
	}
	if limit == 0 {
		return nil // the server doesn't tell
	}
	used -= min(used, spare)
	need, free := roomNeeded(keys, elements, bytes), limit-min(limit, used)
	if need <= free {
		return nil
	}
	return fmt.Errorf("%w: a second copy of %d keys, %d elements and %d bytes needs about %d bytes; Redis %s uses %d of %d (%s), so %d are free: %s",
		statebackend.ErrNoRoom, keys, elements, bytes, need, b.addr.server(), used, limit, what, free, remedy)
}

// info gives the lines of one section of INFO.
func (b *Backend) info(ctx context.Context, section string) (map[string]string, error) {
	text, err := b.client.Info(ctx, section).Result()
	if err != nil {
		return nil, b.mapError(err, "INFO "+section)
	}
	fields := make(map[string]string)
	for _, line := range strings.Split(text, "\n") {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[name] = value
		}
	}
	return fields, nil
}

func infoNumber(info map[string]string, name string) (uint64, error) {
	text, ok := info[name]
	if !ok {
		return 0, errors.New("INFO doesn't tell " + name)
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("INFO %s is %q: %w", name, text, err)
	}
	return n, nil
}

// serverVersion is the version that INFO tells, such as 7.0.15.
func (b *Backend) serverVersion(ctx context.Context) (string, error) {
	info, err := b.info(ctx, "server")
	if err != nil {
		return "", err
	}
	v := info["redis_version"]
	if v == "" {
		return "", fmt.Errorf("server %s doesn't tell its version", b.addr.server())
	}
	return v, nil
}

// versionAtLeast compares the first number of a version.
func versionAtLeast(version string, major int) bool {
	first, _, _ := strings.Cut(version, ".")
	n, err := strconv.Atoi(first)
	return err == nil && n >= major
}
