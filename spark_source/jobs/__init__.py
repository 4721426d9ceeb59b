"""Jobs over the whole history of a topic, as functions and as `quire spark …`.

- `slices` runs a function over a query's slices, in this process or as Spark tasks.
- `state` stores a job's state in a directory.
- `export` copies a topic into Parquet files by date, exactly once.
- `audit` verifies every entry, by `checks`.
- `profile` computes statistics with `sketches`, and `page` draws them.
- `run` writes the rows of slices, and may be killed at any moment. `replay` uses it to write a history into a topic,
  and `compact` to write the latest message of each key.
- `part_file` writes a Parquet file that appears only when it is complete.
- `iceberg` copies a topic into the table of `iceberg_table`; `since` finds the messages that a copy lacks.
- `follow` repeats the copy for all topics that have a policy for it.
"""
