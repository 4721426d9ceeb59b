"""What a subscription has acknowledged, and how that is kept.

`entry_set` (bitmaps by ledger), `redelivery` (counts in bit slices), `partial_acks` (batches in part), `cursor` (joins
them), `cursor_record` (its bytes), `cursor_store` (a shell: all cursors of a bundle in its state log).
"""
