"""Schemas of topics: their versions and their compatibility.

Read in this order. Cores: `definition` (a schema, and equality of schemas), `avro_resolution` (whether data written
with one Avro schema can be read with another), `compatibility` (the strategies), `avro_values` and `reading` (values as
text, for operators), `avro_writing` and `writing` (values from text). Shell: `registry` (storage of versions, and
admission of clients).
"""
