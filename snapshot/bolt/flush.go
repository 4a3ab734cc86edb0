package bolt

import "context"

// Flush makes what was written so far readable by Chunk, before the commit: for
// who reads an attempt's chunks to compare them. It is no commit: nothing is
// listed, and what isn't committed is dropped as ever.
func (w *chunkWriter) Flush(ctx context.Context) error {
	if err := w.usable(ctx); err != nil {
		return err
	}
	if err := w.flush(); err != nil {
		return err
	}
	return w.land()
}
