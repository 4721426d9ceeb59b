"""Cursors: the acknowledgements of subscriptions, in memory and in the state log.

Read in this order:

entry_set        bitmaps of entry ids, by ledger
redelivery       redelivery counts in bit slices
partial_acks     partly acknowledged batches
cursor           acknowledgement state, composed of the three above
cursor_record    byte format of a cursor
cursor_store     a shell: all cursors of a bundle, in its state log
"""
