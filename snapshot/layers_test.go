package snapshot

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// threeWorlds hold every type and every kind of change between them.
func threeWorlds() (a, b, c world) {
	a = worldOf(oddKeys()...)
	a.put(hashKey(SectionKeyed, "job:wide", 700))
	a.put(key(SectionKeyed, TypeSet, "job:members", element("", "one", 0), element("", text(70_000, "long member"), 0), element("", text(9_000, "m"), 0)))
	a.put(key(SectionKeyed, TypeZSet, "job:due", element("", "x", 1), element("", "y", 2.5), element("", text(5_000, "z"), 3)))
	a.put(listKey(SectionKeyed, "job:queue", 40))
	a.put(hashKey(SectionKeyed, "job:leaves", 3))

	b = a.clone()
	wide := a[sectionName{SectionKeyed, "job:wide"}]
	b.put(changed(wide, []RecordedElement{element("field-3", "other", 0), element("new\xff", text(90_000, "long value"), 0), element("", "of the empty one", 0)}, "field-4", "field-5"))
	b.put(changed(a[sectionName{SectionKeyed, "job:members"}], []RecordedElement{element("", "", 0), element("", "\x00two", 0)}, "one"))
	b.put(changed(a[sectionName{SectionKeyed, "job:due"}], []RecordedElement{element("", "x", -1.5)}, text(5_000, "z")))
	b.put(listKey(SectionKeyed, "job:queue", 41))
	b.put(key(SectionKeyed, TypeString, "job:new", element("", "born", 0)))
	b.put(key(SectionKeyed, TypeSet, "job:a", element("", "another type", 0)))
	delete(b, sectionName{SectionKeyed, "job:leaves"})
	b.put(key(SectionKeyed, TypeMissing, "job:list"))

	c = b.clone()
	wide = b[sectionName{SectionKeyed, "job:wide"}]
	wide = changed(wide, []RecordedElement{element("field-3", "third", 0), element("field-4", "back", 0)}, "new\xff")
	wide.Key.ExpireAt = 1893456000777
	c.put(wide)
	due := b[sectionName{SectionKeyed, "job:due"}]
	due.Key.ExpireAt = 1893456000888 // and nothing else
	c.put(due)
	c.put(hashKey(SectionKeyed, "job:leaves", 2))
	delete(c, sectionName{SectionKeyed, "job:new"})
	c.put(hashKey(SectionMeta, "job:stateSchema", 4))
	return a, b, c
}

func TestLayersAreMerged(t *testing.T) {
	a, b, c := threeWorlds()
	for _, target := range []int{200, 5000, 0} {
		s := layeredOf(t, EncoderOptions{ChunkTarget: target}, a, b, c)
		require.Len(t, s.m.Layers, 2)
		require.True(t, s.sum.Sorted)
		holds(t, s, c)
		holds(t, layeredOf(t, EncoderOptions{ChunkTarget: target}, a, b), b)
	}
}
