package snapshot

// ExpectSink is a Sink that makes room when it knows how much comes.
type ExpectSink interface {
	Sink
	// Expect says that about that many keys of the index are to come, missing
	// ones among them. It is called before the first key, or not at all, and
	// is no promise: what comes decides.
	Expect(keys uint64)
}

// Expect tells s how many keys are to come, where it wants to know.
func Expect(s Sink, keys uint64) {
	if e, ok := s.(ExpectSink); ok {
		e.Expect(keys)
	}
}
