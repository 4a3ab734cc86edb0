// Package archive keeps one checkpoint in one file: its chunks, its manifest,
// a table of where each chunk stands, and a footer. The file restores alone, on
// any host; an incremental checkpoint brings the chunks of all its layers.
//
// [Write] makes the bytes as a stream, [Save] a file of them that appears whole
// or not at all. [Open] reads the footer, the table and the manifest, and then
// gives chunks by id, so that snapshot.Walk, snapshot.Verify and a restore work
// on the file itself. The bytes are those of snapshot/FORMAT.md, "Archive".
package archive
