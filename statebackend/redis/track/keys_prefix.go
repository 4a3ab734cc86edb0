package track

import (
	"slices"
	"strings"
)

// maxPrefixes is how many prefixes a watch asks for at once: for each key that
// is written the server compares all prefixes of all its clients.
const maxPrefixes = 64

// keyPrefixes gives prefixes for CLIENT TRACKING under which every key of a
// scope falls, and as little else as may be; below is the root with its colon.
// None begins with another: the server refuses that. Extra names beyond
// maxPrefixes are cut short together, down to the empty prefix, which means
// every key: the server then tells of more keys than matter, and the watch
// sorts them out.
func keyPrefixes(below string, extra map[string]struct{}) []string {
	names := make([]string, 0, len(extra)+1)
	for name := range extra {
		names = append(names, name)
	}
	if len(names) >= maxPrefixes {
		names = shorten(names)
	}
	return withoutCovered(append(names, below))
}

// withoutCovered sorts names and leaves out those that begin with another.
func withoutCovered(names []string) []string {
	slices.Sort(names)
	kept := names[:0]
	for _, name := range names {
		// Whatever begins with a name follows it directly in the order.
		if len(kept) == 0 || !strings.HasPrefix(name, kept[len(kept)-1]) {
			kept = append(kept, name)
		}
	}
	return kept
}

// shorten cuts the names to the greatest length that leaves fewer than
// maxPrefixes of them.
func shorten(names []string) []string {
	longest := 0
	for _, name := range names {
		longest = max(longest, len(name))
	}
	short := []string{""}
	for lo, hi := 1, longest; lo <= hi; {
		mid := (lo + hi) / 2
		cut := make([]string, len(names))
		for i, name := range names {
			cut[i] = name[:min(mid, len(name))]
		}
		if cut = withoutCovered(cut); len(cut) < maxPrefixes {
			short, lo = cut, mid+1
		} else {
			hi = mid - 1
		}
	}
	return short
}

// covered reports whether keys of that name are told of under the prefixes.
func covered(name string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) })
}

// uncovers reports whether a prefix begins one that is there: the server would
// refuse it beside that.
func uncovers(prefix string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(p, prefix) })
}
