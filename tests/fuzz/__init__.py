"""Everything that reads bytes which something else wrote, under bytes that nobody meant.

A target is a function from bytes to nothing. It may raise nothing: what the code under it may say about bad input, the
room's declared error, the target expects; everything else is a finding. What parses is held to more than "no crash": it
comes out the same when it is written and read again, or fed in other pieces, and lies within the input.

Checksums keep a fuzzer out, so most targets take their first byte as a choice: even, the rest is taken as it is; odd,
the checksums in it are put right first (`sealed`), as if whoever wrote it had meant it.

`make fuzz TARGET=frames SECONDS=300` searches with atheris, guided by coverage, beginning with `corpus/TARGET`. What it
keeps there, minimised, runs as ordinary tests (`test_corpus`), with a bound on memory.
"""
