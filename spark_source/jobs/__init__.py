"""Jobs over the whole history of a topic, as functions and as `quire spark …`.

`slices` runs a function over a query's slices, in this process or as tasks of Spark; `state` is what a job keeps in a
directory. `export` copies a topic into Parquet files by date, exactly once; `audit` looks at every entry, and `checks`
says for what; `profile` sums up by `sketches`, and `page` draws it.
"""
