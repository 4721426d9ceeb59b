"""Sink of Spark: `df.write.format("quire")` and `writeStream`.

Reading order: `options` (a write's options), `sequence_ids` (how each row is stored once), `rows` (from Arrow to
messages), `values` (structs by the topic's schema), `topic` (a broker's HTTP endpoints), `task` (the rows of one Spark
task), `writer` (the classes that Spark calls).

*Exactly once*, despite retried and speculative tasks and replayed epochs. Brokers drop duplicate entries by producer
name and sequence id, and store both with the data, as in Pulsar's [deduplication] ([PIP-6]). The sink depends only on
that, and keeps no state.

1. **The name** is `PREFIX.SPARK-PARTITION.GENERATION`. The prefix of a streaming query is its id, which is in its
   checkpoint and so survives restarts. The prefix of a batch is `producer_name`, or generated for each write. The name
   does not contain the topic partition, because each topic partition deduplicates by itself. A generation consists of
   65,536 epochs, as many as a sequence id can distinguish.
2. **The numbers.** The rows of one Spark partition for one topic partition are cut into entries by number and size of
   rows alone, never by time. The n-th entry of an epoch has the sequence ids `(epoch, n, 0) .. (epoch, n, digest)`. The
   digest covers the contents of all entries up to it (`sequence_ids`). A repeated task sends all of its rows again, and
   the broker drops the stored ones. The task also waits for entries that are *accepted*, but not durable yet.
3. **The same rows.** When a producer attaches, the broker returns the last sequence id that it accepted for this name.
   Its digest identifies the rows up to that entry. If the task's own rows have another digest there, Spark gave the
   task other rows than before. It fails with `ReplayDiffers` before it sends anything new.
4. **No gaps.** No entry may follow a failed one: the broker would accept it, and then drop the failed entry when that
   is sent again. So the producer gives up no entry while others are in flight. On any failure the task closes the
   producer first. Only the task has time limits, not the producer.
5. **The same routes.** Rows without a partition of their own are routed by the topic's number of partitions, which may
   grow between two attempts at an epoch. If it has grown, a task attaches to all partitions before its first row. It
   finds the number that an earlier attempt used in the sequence ids of the epoch's stored rows
   (`sequence_ids.routing_of`).
6. **One at a time.** The broker admits one producer of a name. A speculative task waits until the other attempt has
   ended, and then finds all rows that it wrote; so does a retried task whose first attempt still runs. The first
   attempt is not fenced, because fencing would disconnect all other tasks that publish to the same topic. A task that
   resumes after a later epoch was written finds a larger sequence id, and fails with `EpochOver`. So does a query that
   starts from an old copy of its checkpoint.

Spark [replays] a micro-batch with the same offsets of its sources, and retries a task with the same partition. Rows
have the same order if nothing was shuffled. After a shuffle (`groupBy`, `join`, `repartition`) the order of a
partition's rows may differ from run to run. With `rand()`, a UDF that reads the clock, or a table that has changed, the
rows differ. Rule 3 refuses such a replay if some of the partition's rows had been written. With `row_order=content` a
task's rows are first sorted by their contents, so that their order does not matter.

There are no transactions: a row is visible when it is written, even if its task, write or epoch fails later and is
never repeated. `commit` and `abort` only log. A broker forgets a producer name after six hours without messages. If a
query died within an epoch and is started again later than that, it writes the epoch's rows a second time.

[deduplication]: https://pulsar.apache.org/docs/next/concepts-messaging/#message-deduplication
[PIP-6]: https://github.com/apache/pulsar/wiki/PIP-6:-Guaranteed-Message-Deduplication
[replays]: https://spark.apache.org/docs/latest/streaming/getting-started.html#fault-tolerance-semantics
"""
