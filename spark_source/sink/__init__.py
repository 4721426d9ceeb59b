"""The sink: `df.write.format("quire")` and `writeStream`.

Reading order: `options` (what a user may say), `sequence_ids` (how a row is stored once), `rows` (from Arrow to
messages), `values` (structs by the topic's schema), `topic` (what a broker is asked over HTTP), `task` (one Spark
task's rows on their way), `writer` (what Spark calls).

*Exactly once*, over retried and speculative tasks and replayed epochs. Brokers drop duplicates by producer name and
sequence id, entry by entry, and remember both with the data; the sink leaves everything to that, and keeps no state
of its own.

1. **The name** is `PREFIX.SPARK-PARTITION.GENERATION`. The prefix is the streaming query's id, which is in its
   checkpoint, and so the same after a restart; for a batch one made up for each write, or `producer_name`. Every
   topic partition counts by itself, so the name need not say which. A generation is 65,536 epochs, for which the
   numbers have room.
2. **The numbers.** The rows of one Spark partition for one topic partition are cut into entries by number and size
   of rows alone, never by time. The n-th entry of an epoch has the sequence ids `(epoch, n, 0) .. (epoch, n,
   digest)`, where the digest is of the contents of all entries up to it (`sequence_ids`). A task that is run again
   sends all of its rows again, and the broker drops what it has: what is *accepted*, but not durable yet, is not
   skipped but waited for.
3. **Nobody else's rows.** At each attachment the broker says the last number that it took of this name, and so, by
   the digest, also of what rows. Where the task's own rows have another digest there, it was not given the rows
   that it was given before. It fails before it sends anything that is new, as `ReplayDiffers`.
4. **In one piece.** After an entry that failed none may follow: the broker would take it, and then drop the one
   that failed when it is sent again. So no entry is given up while others are on their way: whatever fails closes
   the producer first, and time limits are the task's, not the producer's.
5. **One at a time.** Only one producer of a name is let in. A speculative task, or one that is retried while the
   first is still alive somewhere, waits until the other has gone, and then finds all that it wrote. It is not
   fenced: fencing would send away all other tasks, which publish to the same topic. One that comes back after a
   later epoch finds a later number, and fails as `EpochOver` (as does a query that is started from an old copy of
   its checkpoint).

What Spark promises, and what it does not: a micro-batch is replayed with the same offsets of its sources, and a
task is retried with the same partition. Rows come in the same order as long as nothing was shuffled. After a
shuffle (`groupBy`, `join`, `repartition`) the order of a partition's rows may differ from run to run, and with
`rand()`, a UDF that looks at the clock or a table that has changed, the rows do. Such a replay is refused by rule 3
when some of the partition had been written; with `row_order=content` a task's rows are put into the order of their
contents first, so that only their set must be the same.

There are no transactions: a row is visible when it is written, also of a task, write or epoch that fails later and
is never run again. `commit` and `abort` have nothing to do. A broker forgets a name that was silent for six hours:
a query that died in the middle of an epoch and is started again after that writes that epoch's rows a second time."""
