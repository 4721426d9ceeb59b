"""Messages with a time of delivery.

`delays` (what is due when), `survey` (what was found after mark-delete), `survey_record` (its bytes), `delayed_entries`
(both for a dispatcher, as it reads) and, a shell,
`delayed_delivery` (the timer, and when what was found is written down).
"""
