"""Messages with a time of delivery.

`delays` (what is due when), `survey` (what was found behind mark-delete) and `survey_record` (its bytes).
"""
