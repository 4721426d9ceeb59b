"""What messages look like: the schemas of topics, their versions, and which ones go together.

Reading order: `avro` (whether data written by one definition can be read by another), `definition` (what a schema is,
and when two are the same), `compatibility` (what a strategy asks), `avro_values` and `reading` (values as text, for
people), all cores; `registry` (the shell: where versions are kept, and who is let in with which).
"""
