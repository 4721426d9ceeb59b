"""Jobs over the whole history of a topic, as functions and as `quire spark …`.

`slices` runs a function over a query's slices, in this process or as tasks of Spark; `state` is what a job keeps in a
directory. `export` copies a topic into Parquet files by date, exactly once; `audit` looks at every entry, and `checks`
says for what; `profile` sums up by `sketches`, and `page` draws it.
`run` is a run over slices that may be killed at any moment: `replay` writes a history into a topic by it, `compact` the
latest message of each key. `part_file` is a Parquet file that is whole or not there.
`iceberg` copies a topic into the table of `iceberg_table`; `since` is what a copy lacks. `follow` does so again and
again, for all topics whose policies say so.
"""
